"""The limits of a GPU share in real frameworks: Debian's PyTorch (python3-torch) and TensorFlow (tensorflow-cpu).

There is no GPU here, so each program tells its framework of one; which calls a framework takes, and when, is its own.
That the files reach a container is in tests/contract/devices_contract.py.

Not collected with the others, as TensorFlow alone takes 1 GiB. `apt-get install python3-torch`, make a virtual
environment with tensorflow-cpu, and run
`TENSORFLOW_PYTHON=DIR/bin/python .venv/bin/python -m pytest -n 0 tests/integration/walk_frameworks.py`.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from commonage.files.injected import PYTHON

TORCH_PYTHON = os.environ.get("TORCH_PYTHON", "/usr/bin/python3")
TENSORFLOW_PYTHON = os.environ.get("TENSORFLOW_PYTHON", "")
TORCH = """
import os, types, torch
print(torch.__version__.split(".")[0], "PYTORCH_CUDA_ALLOC_CONF" in os.environ, torch.cuda.is_initialized())
asked = []
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(total_memory=24 * 1024**3)
torch.cuda._lazy_init = torch.cuda.memory._lazy_init = lambda: None
torch._C._cuda_setMemoryFraction = lambda fraction, device: asked.append((fraction, device))
for call, _ in torch.cuda._queued_calls:  # as its own start of CUDA does
    if "sitecustomize" in call.__code__.co_filename:
        call()
print(asked, float(torch.ones(3).sum()))
"""
TENSORFLOW = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
device = context.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
context.context()._physical_devices.append(device)
context.context()._physical_device_to_index[device] = 0
finder = next(one for one in sys.meta_path if type(one).__module__ == "sitecustomize")
type(finder).find_spec.__globals__["_limit_tensorflow"](tf)  # as at the import, had there been a GPU
tf.config.experimental.set_memory_growth(device, True)
print([one.memory_limit for one in tf.config.get_logical_device_configuration(device)])
"""


def said(python: str, program: str, usable_mib: int = 6144) -> tuple[str, str]:
    """Its output, and our lines on stderr."""
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PYTHON),
        "COMMONAGE_GPU_USABLE_MIB": str(usable_mib),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    ended = subprocess.run([python, "-c", program], env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, "".join(line for line in ended.stderr.splitlines() if "commonage" in line)


def test_pytorch_keeps_to_the_share_once_cuda_starts() -> None:
    printed, ours = said(TORCH_PYTHON, TORCH)
    assert (printed.splitlines()[0][1:], ours) == (" False False", "")
    assert printed.splitlines()[1] == "[(0.25, 0)] 3.0"


@pytest.mark.skipif(not TENSORFLOW_PYTHON, reason="TENSORFLOW_PYTHON names a Python with tensorflow-cpu")
def test_tensorflow_keeps_to_the_share_and_may_be_asked_for_growth() -> None:
    assert said(TENSORFLOW_PYTHON, TENSORFLOW) == ("[6144]\n", "")


@pytest.mark.skipif(not TENSORFLOW_PYTHON, reason="TENSORFLOW_PYTHON names a Python with tensorflow-cpu")
def test_tensorflow_without_a_gpu_works_as_ever() -> None:
    program = "import tensorflow as tf; print(float(tf.reduce_sum(tf.ones(3))))"
    assert said(TENSORFLOW_PYTHON, program) == ("3.0\n", "")
