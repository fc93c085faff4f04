"""`driver-limit`: the driver itself refuses memory beyond the share, to everything in the attempt's control group.

NVML's nvmlDeviceSetMemoryLimits_v1 takes the full path of a cgroup (version 2) folder, a soft and a hard limit in
bytes. Allocations beyond the hard limit fail; above the soft limit MPS may take memory back, so both are the share. The
soft limit is also counted on the parent groups, and is subtracted there only if it is cleared before the group is
removed. Needs driver 615 (CUDA 13.4), Linux, root, and a GPU that is not in MIG mode. For a container NVIDIA's
container toolkit does the same from the variables NVIDIA_GPU_MEMORY_REQUEST and _LIMIT (whole MiB). Source: NVIDIA,
"MPS v3 Memory Partitioning" and the NVML reference, release 615.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pynvml

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    CgroupsMissing,
    CgroupsReadOnly,
    ContainerToolkitTooOld,
    DriverRefusesLimits,
    DriverTooOld,
    GpuSimulated,
    MigInstanceHasNoLimits,
    NvidiaOnly,
    RootRequired,
)
from commonage.gpu.environment import MIB
from commonage.gpu.isolation.level import Level, is_nvidia
from commonage.gpu.isolation.session import handle_of, nvml, words
from commonage.ports.devices import ShareAssignment, ShareNotEnforced

log = logging.getLogger(__name__)
MIN_DRIVER = 615
_HOOK = "apply-cuda-memory-limits"
_TOOLKIT_COUNTS_S, _TOOLKIT_WITHIN_S = 300.0, 10.0
# This group never has limits, so a driver that supports them may refuse to report any. Setting one shows the support.
_OF_THE_TOPMOST_GROUP = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def _toolkit_sets_limits() -> bool:
    """Determined from the help text of its programs: older ones ignore the variables."""
    for command in (["nvidia-cdi-hook", "--help"], ["nvidia-ctk", "hook", "--help"]):
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=_TOOLKIT_WITHIN_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if _HOOK in said.stdout + said.stderr:
            return True
    return False


class DriverLimit(Level):
    """Memory limits by the driver. `cgroup_root` is where cgroups version 2 are mounted.

    `in_containers`: workloads run in containers, whose limits NVIDIA's container toolkit sets.
    """

    isolation = Isolation.DRIVER_LIMIT

    def __init__(
        self,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        is_root: Callable[[], bool] = lambda: os.geteuid() == 0,
        *,
        in_containers: bool = False,
    ) -> None:
        self._in_containers = in_containers
        self._toolkit: tuple[Reason | None, float] = None, 0.0  # why it cannot, and until when that is cached
        self._root = cgroup_root
        self._is_root = is_root
        self._asked: dict[tuple[str, str], Reason | None] = {}

    def why_unavailable(self, device: Device) -> Reason | None:
        """The driver is asked once for each GPU and driver version."""
        if device.simulated:
            return GpuSimulated()
        if sys.platform != "linux" or not is_nvidia(device):
            return NvidiaOnly()
        if device.parent_uuid is not None:
            return MigInstanceHasNoLimits()
        major = device.driver.partition(".")[0]
        if not major.isdigit() or int(major) < MIN_DRIVER:
            return DriverTooOld(required=str(MIN_DRIVER), present=device.driver)
        if not (self._root / "cgroup.controllers").exists():
            return CgroupsMissing(folder=str(self._root))
        if not self._is_root():
            return RootRequired()
        if not os.access(self._root, os.W_OK):
            return CgroupsReadOnly(folder=str(self._root))
        if self._in_containers and (why := self._why_toolkit_cannot()):
            return why
        key = device.uuid, device.driver
        if key not in self._asked:
            self._asked[key] = self._ask(device.uuid)
        return self._asked[key]

    def _why_toolkit_cannot(self) -> Reason | None:
        why, until = self._toolkit
        if time.monotonic() >= until:
            why = None if _toolkit_sets_limits() else ContainerToolkitTooOld(hook=_HOOK)
            self._toolkit = why, time.monotonic() + _TOOLKIT_COUNTS_S
        return why

    def _ask(self, uuid: str) -> Reason | None:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = os.fsencode(self._root)
        try:
            with nvml():
                pynvml.nvmlDeviceGetMemoryLimits_v1(handle_of(uuid), limits)
        except pynvml.NVMLError as error:
            return None if error.value in _OF_THE_TOPMOST_GROUP else DriverRefusesLimits(error=words(error))
        return None

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Set the limits; for a container, pass them to its runtime."""
        if assignment.in_container:
            limit = str(min(share.memory_mib for share in assignment.shares))
            return {"NVIDIA_GPU_MEMORY_REQUEST": limit, "NVIDIA_GPU_MEMORY_LIMIT": limit}
        folder = _unified(assignment)
        if folder is None:
            raise ShareNotEnforced(
                "its share of a GPU cannot be held by the driver: it has no control group of version 2; "
                "see `commonage doctor`, or set gpu_isolation to another level"
            )
        for share in assignment.shares:
            try:
                _set(share.device_uuid, folder, share.memory_mib * MIB, share.memory_mib * MIB)
            except pynvml.NVMLError as error:
                raise ShareNotEnforced(
                    f"the limit of {share.memory_mib} MiB on GPU {share.device_index} cannot be set: {words(error)}; "
                    "see `commonage doctor gpu`",
                    retryable=error.value in (pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_IN_USE),
                ) from error
        return {}

    def release(self, assignment: ShareAssignment) -> None:
        """Clear the limits, so that the parent groups no longer count them."""
        folder = _unified(assignment)
        if folder is None or not folder.is_dir():  # its limits were removed with it
            return
        for share in assignment.shares:
            try:
                _set(share.device_uuid, folder, 0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
            except pynvml.NVMLError as error:
                log.warning(
                    "attempt %s: its limit on %s stays: %s", assignment.attempt_id, share.device_uuid, words(error)
                )


def _unified(assignment: ShareAssignment) -> Path | None:
    """The attempt's folder in the version 2 hierarchy."""
    return next((Path(one) for one in assignment.cgroups if (Path(one).parent / "cgroup.controllers").exists()), None)


def _set(uuid: str, folder: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace = os.fsencode(folder)
    limits.softLimit, limits.hardLimit = soft, hard
    with nvml():
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle_of(uuid), limits)
