"""A program that tries one operation on its visible GPUs, and prints the result as JSON.

    python -m commonage.gpu.cuda.probe look | context | fill | burn

`doctor gpu` and the measuring of CUDA contexts run it as a process of its own, with the variables and in
the control group of the share that is tried. It imports no framework. Whatever goes wrong is part of the answer
(`error` and `code`), so the exit code is 0 wherever there is an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from commonage.gpu.cuda.driver import LIBRARY, OUT_OF_MEMORY, Cuda, CudaError

STEP_MIB = 64
ROUNDS = 200_000
_STDIN = 0


def main() -> None:
    """Run the command in the arguments; prints one JSON object per line, the last one is the answer."""
    options = _options()
    answer: dict[str, Any] = {"error": "", "code": 0}
    if options.leave_group:
        answer["left_group"] = _leave_group()
    try:
        _ACTIONS[options.action](options, answer)
    except CudaError as error:
        answer |= {"error": str(error), "code": error.code}
    _say(answer)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="probe", description=__doc__)
    parser.add_argument("action", choices=sorted(_ACTIONS))
    parser.add_argument("--library", default=LIBRARY, help="the CUDA driver library")
    parser.add_argument("--uuid", default="", help="the GPU, in hexadecimal digits; else the first that is visible")
    parser.add_argument(
        "--max-mib", type=int, default=0, help="fill: stop at this amount; burn: hold this amount meanwhile"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="burn: duration; 0 is until standard input ends")
    parser.add_argument("--leave-group", action="store_true", help="first try to move into the control group above")
    return parser.parse_args()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _use(options: argparse.Namespace, answer: dict[str, Any]) -> Cuda:
    cuda = Cuda(options.library)
    answer["seen"] = cuda.devices()
    if options.uuid and options.uuid not in answer["seen"]:
        raise CudaError("cuDeviceGetUuid", -1, f"the GPU {options.uuid} is not visible")
    if not answer["seen"]:
        raise CudaError("cuDeviceGetCount", -1, "no GPU is visible")
    cuda.use(answer["seen"].index(options.uuid) if options.uuid else 0)
    return cuda


def _look(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    answer["seen"] = Cuda(options.library).devices()


def _context(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    """The memory that NVML reports for this process with a context, which is the context's size."""
    cuda = Cuda(options.library)
    (uuid,) = cuda.devices()
    before = _used_mib(uuid)
    cuda.use(0)
    cuda.memory_mib()
    answer["context_mib"] = _own_mib(uuid) or max(0, _used_mib(uuid) - before)


def _used_mib(uuid: str) -> int:
    with _nvml() as nvml:
        return int(nvml.nvmlDeviceGetMemoryInfo(_handle(nvml, uuid)).used) >> 20


def _own_mib(uuid: str) -> int:
    """Found by process id; 0 if NVML does not report it, or counts processes in another namespace."""
    with _nvml() as nvml:
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(_handle(nvml, uuid)):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory) >> 20
    return 0


@contextlib.contextmanager
def _nvml() -> Any:
    import pynvml  # noqa: PLC0415  # noqa: PLC0415  # only measuring needs it

    try:
        pynvml.nvmlInit()
        yield pynvml
    except pynvml.NVMLError as error:
        raise CudaError("NVML", -1, str(error)) from error


def _handle(nvml: Any, uuid: str) -> Any:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if digits(nvml.nvmlDeviceGetUUID(handle)) == uuid:
            return handle
    raise CudaError("NVML", -1, f"lists no GPU {uuid}")


def digits(uuid: str) -> str:
    """The hexadecimal digits of a uuid as NVML writes it (`GPU-…`, `MIG-…`)."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "").lower()


def _fill(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Allocate memory in steps until it is refused, or until the requested amount is reached."""
    answer["allocated_mib"] = 0
    cuda = _use(options, answer)
    answer["told_free_mib"], answer["told_total_mib"] = cuda.memory_mib()
    addresses = []
    try:
        while answer["allocated_mib"] < options.max_mib:
            step = min(STEP_MIB, options.max_mib - answer["allocated_mib"])
            addresses.append(cuda.allocate(step))
            answer["allocated_mib"] += step
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        answer["refused"] = True
    for address in addresses:
        cuda.free(address)


def _burn(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Compute with memory allocated, for a time or until standard input ends; prints `ready` when it has begun."""
    answer |= {"launches": 0, "seconds": 0.0}
    cuda = _use(options, answer)
    for _ in range(options.max_mib // STEP_MIB):
        cuda.allocate(STEP_MIB)
    burner = cuda.burner()
    burner.burn(ROUNDS)
    _say({"ready": True})
    began = time.monotonic()
    while not _is_over(options.seconds, began):
        burner.burn(ROUNDS)
        answer["launches"] += 1
        answer["seconds"] = time.monotonic() - began


def _is_over(seconds: float, began: float) -> bool:
    if seconds:
        return time.monotonic() - began >= seconds
    return bool(select.select([_STDIN], [], [], 0)[0])


def _leave_group() -> bool:
    """Move into the parent of each of this process's control groups; True if one of these moves succeeded."""
    moved = False
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/":
            continue
        for mount in _mounts(controllers):
            with contextlib.suppress(OSError):
                (mount / path.lstrip("/")).parent.joinpath("cgroup.procs").write_text("0", encoding="ascii")
                moved = True
    return moved


def _mounts(controllers: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [root / controllers] if controllers else [root, root / "unified"]


_ACTIONS = {"look": _look, "context": _context, "fill": _fill, "burn": _burn}

if __name__ == "__main__":
    main()
