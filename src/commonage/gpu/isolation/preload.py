"""`preload`: every program of a container loads an interposer, which refuses it memory beyond the share.

The site installs the interposer, with the interface of HAMi-core's libvgpu.so: a library between programs and the CUDA
driver that reads its limits from variables. `CUDA_DEVICE_MEMORY_LIMIT_<i>` is the memory of the i-th visible GPU
(`6144m`; 0 is no limit), counted over all processes with the same CUDA_DEVICE_MEMORY_SHARED_CACHE.
`CUDA_DEVICE_SM_LIMIT` is a percentage of the multiprocessors. CUDA then reports the limit as the total. A program that
clears its variables, calls the driver in another way, or sets CUDA_DISABLE_CONTROL where the interposer reads it, has
no limit: this level protects against mistakes only.

`/etc/ld.so.preload` names the library, so that no variable of a user or an image replaces it. Containers mount both
read-only from `folder`. The library there is a copy, so that running containers keep it when an admin replaces it.
Source: HAMi-core, and HAMi's device plugin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    GpuSimulated,
    MigInstanceIsIsolated,
    NvidiaOnly,
    PreloadLibraryUnusable,
    PreloadNotConfigured,
    PreloadOnlyInContainers,
)
from commonage.files import preload
from commonage.gpu.isolation.level import Level, is_nvidia
from commonage.ports.devices import ShareAssignment, ShareNotEnforced

_ELF = b"\x7fELF"
_CACHE_IN_CONTAINER = "/dev/shm/vgpu.cache"  # noqa: S108 - each container has its own
_LOCKS = Path("/tmp/vgpulock")  # noqa: S108 - HAMi-core before 2026-02 waits for ever where this folder is missing


class Preload(Level):
    """The interposer `library`, which containers get from `folder`. None: the site has none.

    `in_containers`: workloads run in containers.
    """

    isolation = Isolation.PRELOAD

    def __init__(self, folder: Path, library: Path | None, *, in_containers: bool = True) -> None:
        self._folder, self._library, self._in_containers = folder, library, in_containers

    def why_unavailable(self, device: Device) -> Reason | None:
        if device.simulated:
            return GpuSimulated()
        if sys.platform != "linux" or not is_nvidia(device):
            return NvidiaOnly()
        if device.parent_uuid is not None:
            return MigInstanceIsIsolated()
        if not self._in_containers:
            return PreloadOnlyInContainers()
        return PreloadNotConfigured() if self._library is None else _fault_of(self._library)

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Copy the library to `folder`, and return the limits; outside a container, as doctor tries it, it is named."""
        if len(assignment.shares) > 1:
            raise ShareNotEnforced("parts of several GPUs cannot be held by an interposer: it counts only the first")
        (share,) = assignment.shares
        try:
            library = self._publish()
        except OSError as error:
            raise ShareNotEnforced(
                f"the interposer that holds its share cannot be copied from {self._library} to {self._folder}: "
                f"{error.strerror or error}; see gpu_preload"
            ) from error
        limits = {
            "CUDA_DEVICE_MEMORY_LIMIT_0": f"{share.memory_mib}m",
            "CUDA_DEVICE_SM_LIMIT": str(max(1, min(100, share.compute_milli // 10))),
            "CUDA_DISABLE_CONTROL": "false",  # an image or a user that sets it would lose the limit unnoticed
            "LIBCUDA_LOG_LEVEL": "0",  # errors only: else each process reports its start and its end
        }
        if assignment.in_container:
            where = {preload.VARIABLE: str(self._folder), "CUDA_DEVICE_MEMORY_SHARED_CACHE": _CACHE_IN_CONTAINER}
        else:
            cache = str(self._folder / f"{assignment.attempt_id}.cache")
            # It loads itself again, from CUDA_REDIRECT or else from the place that it has in containers.
            where = {name: str(library) for name in ("LD_PRELOAD", "CUDA_REDIRECT")}
            where["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = cache
            with suppress(FileExistsError):
                _LOCKS.mkdir()
        return limits | where

    def release(self, assignment: ShareAssignment) -> None:
        """Remove the files of an attempt. Those of a container are removed with it."""
        if not assignment.in_container:
            (self._folder / f"{assignment.attempt_id}.cache").unlink(missing_ok=True)
            with suppress(OSError):  # missing, or in use
                _LOCKS.rmdir()

    def _publish(self) -> Path:
        """Put the library and the file that names it into `folder`, where they are not there yet. Raises OSError."""
        if self._library is None:
            raise FileNotFoundError("gpu_preload names no library any more")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)
        library = self._folder / preload.LIBRARY
        _replace(library, self._library.read_bytes())
        _replace(self._folder / preload.LIST, f"{preload.LIBRARY_INSIDE}\n".encode())
        return library


def _replace(file: Path, content: bytes) -> None:
    """By another file: programs that have loaded the old one continue with it."""
    with suppress(FileNotFoundError):
        if file.read_bytes() == content:
            return
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    new.write_bytes(content)
    new.chmod(0o644)
    os.replace(new, file)


def _fault_of(library: Path) -> Reason | None:
    try:
        with library.open("rb") as file:
            begins = file.read(len(_ELF))
    except OSError as error:
        return PreloadLibraryUnusable(path=str(library), error=error.strerror or str(error))
    return None if begins == _ELF else PreloadLibraryUnusable(path=str(library), error="it is not a library")
