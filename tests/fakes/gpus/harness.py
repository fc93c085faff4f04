"""Two GPUs that do not exist, for a real daemon: what the driver says of them, their device files, and the toolkit.

`Gpus` makes in one folder the fake NVML library with its state, character devices under NVIDIA's names (of harmless
devices that this machine has), the stand-in of the container toolkit, and specifications for CDI. `LOOK` is the program
that tells from within a container what is there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.cuda.harness import LIBRARY, build_cuda
from tests.fakes.gpus.toolkit import make_devices
from tests.fakes.nvml.harness import FakeDriver, NvmlProcess, build_library
from tests.fakes.vgpu.harness import build_interposer

from commonage.domain.nodes import Device, Isolation, Share
from commonage.gpu.isolation.contexts import Contexts
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.devices import IsolatedDevices, Sharing
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.mps_daemon import PROGRAM, MpsDaemon
from commonage.gpu.isolation.preload import Preload

A, B = "GPU-aaaaaaaa-0000-0000-0000-0000000000c1", "GPU-bbbbbbbb-0000-0000-0000-0000000000c2"
MEMORY_MIB = 24576
_HARMLESS = ("fuse", "loop-control", "autofs", "btrfs-control", "hwrng")
"""Devices that no container may open by itself, and that do nothing when they are opened."""
_EVERYBODYS = ("zero", "full", "null", "urandom")

STATE = "/tmp/gpu.state"
"""Where a container's CUDA library looks for GPUs: the program writes there what it is to see."""

FILL = f"""
import ctypes, json, os, subprocess, sys
with open('{STATE}', 'w') as state:
    state.write(f'device\\nuuid {{os.environ["CUDA_VISIBLE_DEVICES"]}}\\nmemory {MEMORY_MIB} 0 0\\n')
FILL = '''
import ctypes, sys
cuda = ctypes.CDLL('/usr/lib/libcuda.so.1')
context, address, got = ctypes.c_void_p(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
while got < int(sys.argv[1]) and cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(512 << 20)) == 0:
    got += 512
print(got, flush=True)
sys.stdin.read()
'''
def start(mib, **more):
    words = [sys.executable, '-c', FILL, str(mib)]
    return subprocess.Popen(words, env={{**os.environ, **more}}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def got(process):
    return int(process.stdout.readline())
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.strerror
    return 'opens'
first = start(4096)
said = {{'first': got(first), 'second': got(start(16384)), 'off': got(start(16384, CUDA_DISABLE_CONTROL='true'))}}
said['opens'] = [opens(path) for path in ('/etc/ld.so.preload', '/usr/local/vgpu/libvgpu.so')]
said['variables'] = {{name: value for name, value in os.environ.items() if name.startswith('CUDA_D')}}
print(json.dumps(said))
"""
"""Has several programs take memory of the GPU, one after the other."""

LOOK = """
import glob, json, os, sys
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.strerror
    return 'opens'
def makes(number):
    try:
        os.mknod('/tmp/own', 0o20666, number)
    except OSError as error:
        return error.strerror
    return 'made'
print(json.dumps({
    'devices': {name[5:]: opens(name) for name in sorted(glob.glob('/dev/nvidia*'))},
    'libraries': [name for name in ('libcuda.so.1', 'libnvidia-ml.so.1') if os.path.exists('/usr/lib/' + name)],
    'own': makes(int(os.environ['OTHER'])) if 'OTHER' in os.environ else None,
    'variables': {name: value for name, value in os.environ.items()
                  if name.startswith(('NVIDIA_', 'CUDA_', 'COMMONAGE_GPU', 'XLA_', 'PYTORCH_'))},
    'limits': any(type(one).__module__ == 'sitecustomize' for one in sys.meta_path),
    'paths': os.environ.get('PYTHONPATH'),
    'pipe': sorted(os.listdir(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', '/run/commonage'))),
}))
"""


def _gpu(uuid: str, index: int) -> tuple[str, ...]:
    return (
        "device", f"uuid {uuid}", "name NVIDIA A10", f"memory {MEMORY_MIB} 0 0", "capability 8 6", "compute_mode 0",
        "mig 0", f"pci 0000:{index + 1:02X}:00.0",
    )  # fmt: skip


GPUS = (_gpu(A, 0), _gpu(B, 1))
"""Both, in the configuration of the fake NVML."""


def put_toolkit(folder: Path, place: Path, python: str) -> Sequence[str]:
    """The stand-in of the toolkit in `folder`, which will be at `place` when it is used; the names of its programs."""
    table = [{"uuid": uuid, "index": str(at), "path": f"{place}/dev/nvidia{at}"} for at, uuid in enumerate((A, B))]
    (folder / "gpus.json").write_text(json.dumps({"gpus": table, "cuda": "cuda>=12.8"}))
    (folder / "limits").touch()
    (folder / "lib").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / "lib" / name).touch()
    shutil.copy(Path(__file__).with_name("toolkit.py"), folder)
    programs = ("nvidia-container-runtime-hook", "nvidia-container-runtime")
    for name in programs:
        (folder / name).write_text(f'#!/bin/sh\nexec {python} -IS {place}/toolkit.py {name} "$@"\n')
        (folder / name).chmod(0o755)
    return programs


class Gpus:
    """Both, in `folder`, whose path is short as the sockets of MPS need it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = device_numbers()
        self.interposer = build_interposer(folder)
        make_devices(folder / "dev", self.numbers)
        put_toolkit(folder, folder, getattr(sys, "_base_executable", sys.executable))
        build_cuda(folder / "lib" / LIBRARY, STATE)
        (folder / "nvml").mkdir()
        build_library(folder / "nvml")
        self._state = folder / "nvml.state"
        FakeDriver(self._state).says("driver 570.10", "nvml 12.570.10", "cuda 12080", *GPUS[0], *GPUS[1])
        self._opened: list[tuple[NvmlProcess, IsolatedDevices]] = []

    @property
    def on_path(self) -> tuple[str, ...]:
        """Words before a daemon's command: it finds the hook when it starts, so that it offers GPUs by request."""
        return ("env", f"PATH={self.folder}:{os.environ['PATH']}")

    @property
    def as_runtime(self) -> tuple[str, ...]:
        """Arguments of a daemon whose containers all run by NVIDIA's runtime, as `node join` sets it."""
        return "--add-runtime", f"nvidia={self.folder}/nvidia-container-runtime", "--default-runtime", "nvidia"

    def write_cdi(self, *, by: Sequence[str] = ("index", "uuid")) -> Path:
        """A folder with a specification as `nvidia-ctk cdi generate` makes them. `by`: how GPUs are called in it."""
        places = {uuid: f"/dev/nvidia{at}" for at, uuid in enumerate((A, B))}
        names = {"index": {uuid: str(at) for at, uuid in enumerate((A, B))}, "uuid": {A: A, B: B}}
        devices = [
            {"name": names[way][uuid], "containerEdits": {"deviceNodes": [self._node(places[uuid])]}}
            for way in by
            for uuid in (A, B)
        ]
        every = {"deviceNodes": [self._node(place) for place in places.values()]}
        mounts = [
            {"hostPath": f"{self.folder}/lib/{name}", "containerPath": f"/usr/lib/{name}", "options": ["ro", "bind"]}
            for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        ]
        common = {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [self._node("/dev/nvidiactl")],
            "mounts": mounts,
        }
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [*devices, {"name": "all", "containerEdits": every}],
            "containerEdits": common,
        }
        folder = self.folder / "cdi"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia.json").write_text(json.dumps(spec))
        return folder

    def _node(self, path: str) -> dict[str, str]:
        return {"path": path, "hostPath": str(self.folder / path.removeprefix("/"))}

    def devices(self, place: Path) -> IsolatedDevices:
        """The GPUs as a server has them, by the fake library, with its files in `place`."""
        inner = NvmlProcess(self.folder / "nvml", self._state)
        opened = IsolatedDevices(
            inner,
            Sharing(place),
            levels=[DriverLimit(), Mps(place / "mps"), Preload(place / "preload", self.interposer), Cooperative()],
            claims=GpuLocks("test", place),
            contexts=Contexts(place / "contexts.json", lambda _: ""),
        )
        self._opened.append((inner, opened))
        return opened

    @contextmanager
    def other_interposer(self, build: Callable[[Path], Path]) -> Iterator[None]:
        """Let the site have another library in its place for a while."""
        kept = self.interposer.read_bytes()
        self.interposer.write_bytes(build(self.folder).read_bytes())
        try:
            yield
        finally:
            self.interposer.write_bytes(kept)

    def have_mps(self) -> None:
        """With a program in the place of NVIDIA's daemon, for who has our folder on the path."""
        shutil.copy(Path(__file__).parents[1] / "mps" / PROGRAM, self.folder / PROGRAM)

    def limits(self) -> list[str]:
        """The limit of each container that the toolkit was given, in MiB; `-` without one."""
        return [line.split()[1] for line in (self.folder / "limits").read_text().splitlines()]

    def close(self) -> None:
        for inner, opened in self._opened:
            for attempt in opened.enforced():
                opened.release(attempt)
            opened.close()
            inner.end()
        for place in self.folder.glob("*/mps/*"):
            MpsDaemon.in_folder(place).stop()


def share_of(gpu: Device, memory_mib: int = 6144, isolation: Isolation = Isolation.COOPERATIVE) -> Share:
    whole = memory_mib >= gpu.memory_mib
    part = min(memory_mib, gpu.memory_mib)
    milli = 1000 if whole else 250
    return Share(gpu.uuid, gpu.index, gpu.model, part, milli, whole, gpu.memory_mib, isolation=isolation)


def seen(lines: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def device_numbers() -> dict[str, int]:
    """Device numbers for the driver's names: such that a control group of version 1 decides who may open them."""
    found = [name for name in _HARMLESS if _opens(Path("/dev", name))]
    if len(found) < 4 or not Path("/sys/fs/cgroup/devices").is_dir():
        found = list(_EVERYBODYS)
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-fs0")
    return {name: os.stat(f"/dev/{of}").st_rdev for name, of in zip(names, found, strict=False)}


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True
