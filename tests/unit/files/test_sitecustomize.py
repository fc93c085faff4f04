"""The sitecustomize of workloads with a share: it limits PyTorch and TensorFlow when they come, and troubles no other.

Run as workloads run it: a fresh Python with the folder on PYTHONPATH. The frameworks are small ones of our own, with
the names and the refusals that matter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commonage.files.injected import PYTHON

TORCH = """
__version__ = "2.10.1+cu130"
class _Cuda:
    def __init__(self): self.queued, self.asked, self.started = [], [], False
    def _lazy_call(self, call): call() if self.started else self.queued.append(call)
    def is_initialized(self): return self.started
    def start(self):
        self.started = True
        for call in self.queued: call()
    def device_count(self): return 2
    def get_device_properties(self, index):
        class Properties: total_memory = (10, 40)[index] * 1024**3
        return Properties
    def set_per_process_memory_fraction(self, fraction, device):
        assert self.started, "that would have made a context"
        self.asked.append((round(fraction, 4), device))
cuda = _Cuda()
"""
TENSORFLOW = """
class LogicalDeviceConfiguration:
    def __init__(self, memory_limit): self.memory_limit = memory_limit
class _Experimental:
    def set_memory_growth(self, device, enable):
        if device in config.limits: raise ValueError("Cannot set memory growth: virtual devices configured")
class _Config:
    LogicalDeviceConfiguration = LogicalDeviceConfiguration
    experimental = _Experimental()
    limits = {}
    def list_physical_devices(self, kind): return ["/physical_device:GPU:0"] if kind == "GPU" else []
    def set_logical_device_configuration(self, device, configurations):
        (one,) = configurations
        self.limits[device] = one.memory_limit
config = _Config()
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for name, text in (("torch", TORCH), ("tensorflow", TENSORFLOW)):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(text)
    return tmp_path / "packages"


def run(program: str, *path: Path, usable: str = "5120") -> tuple[str, str]:
    """Its output and errors, with our folder first on the path."""
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(map(str, (PYTHON, *path))),
        "COMMONAGE_GPU_USABLE_MIB": usable,
    }
    ended = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    return ended.stdout.strip(), ended.stderr.strip()


def test_torch_is_limited_on_each_device_once_it_uses_them(packages: Path) -> None:
    program = "import torch; before = list(torch.cuda.asked); torch.cuda.start(); print(before, torch.cuda.asked)"
    assert run(program, packages) == ("[] [(0.5, 0), (0.125, 1)]", "")


def test_a_limit_is_never_more_than_the_device(packages: Path) -> None:
    program = "import torch; torch.cuda.start(); print(torch.cuda.asked)"
    assert run(program, packages, usable="999999")[0] == "[(1.0, 0), (1.0, 1)]"


@pytest.mark.parametrize("version", ["1.13.1", "2.9.1"])
def test_every_torch_is_limited_and_keeps_the_users_allocator_settings(packages: Path, version: str) -> None:
    torch = packages / "torch" / "__init__.py"
    torch.write_text(torch.read_text().replace("2.10.1+cu130", version))
    program = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native"
import torch
torch.cuda.start()
print(os.environ["PYTORCH_CUDA_ALLOC_CONF"], torch.cuda.asked == [(0.5, 0), (0.125, 1)])
"""
    assert run(program, packages) == ("backend:native True", "")


def test_a_torch_that_cannot_be_limited_still_starts_cuda(packages: Path) -> None:
    torch = packages / "torch" / "__init__.py"
    torch.write_text(torch.read_text().replace("set_per_process_memory_fraction", "of_another_name"))
    said, errors = run("import torch; torch.cuda.start(); print(torch.cuda.started)", packages)
    assert said == "True"
    assert "the GPU share could not be set in torch" in errors


def test_tensorflow_is_limited_before_it_begins_and_may_be_asked_for_growth(packages: Path) -> None:
    program = """
import tensorflow as tf
tf.config.experimental.set_memory_growth("/physical_device:GPU:0", True)
print(tf.config.limits)
"""
    assert run(program, packages) == ("{'/physical_device:GPU:0': 5120}", "")


def test_what_is_not_ours_to_allow_stays_refused(packages: Path) -> None:
    program = """
import tensorflow as tf
try:
    tf.config.experimental.set_memory_growth("/physical_device:GPU:0", False)
except ValueError:
    print("refused")
"""
    assert run(program, packages)[0] == "refused"


def test_a_framework_that_is_not_imported_is_not_loaded(packages: Path) -> None:
    program = "import sys, json; print([name for name in ('torch', 'tensorflow', 'typing') if name in sys.modules])"
    assert run(program, packages) == ("[]", "")


def test_a_framework_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    program = """
try:
    import torch
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(program, tmp_path) == ("No module named 'torch'", "")


def test_a_framework_that_has_changed_is_said_and_works_on(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("version = 3")
    said, errors = run("import tensorflow; print(tensorflow.version)", tmp_path)
    assert said == "3"
    assert errors.startswith("commonage: the GPU share could not be set in tensorflow:")


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("here = 'mine'")
    assert run("import sitecustomize; print(sitecustomize.here)", tmp_path)[0] == "mine"


def test_without_a_share_nothing_is_hooked(packages: Path) -> None:
    program = "import torch, sys; torch.cuda.start(); print(torch.cuda.asked, 'sitecustomize' in str(sys.meta_path))"
    assert run(program, packages, usable="")[0] == "[] False"


def test_submodules_and_reloading_work(packages: Path) -> None:
    (packages / "torch" / "nn.py").write_text("layers = 1")
    program = "import torch.nn, importlib; importlib.reload(torch); print(torch.nn.layers, torch.__spec__.name)"
    assert run(program, packages) == ("1 torch", "")
