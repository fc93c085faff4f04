"""`mps`: the GPU's workloads are clients of one MPS server, which refuses each of them memory beyond its share.

Variables tell a client the daemon's address, its memory limit (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, `0=NNNM` for its first
visible GPU; one entry for a GPU that it does not see would disable all limits), and its part of the GPU's
multiprocessors (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). While the daemon runs, the GPU is in exclusive-process mode if we
may set that, so that a program which clears its variables gets nothing instead of everything.

A fatal fault of one client ends the work of all clients of its GPU; the notice on the device says so. The daemon is
started with a GPU's first limited share and ended with its last, so that a whole GPU never has one.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    ComputeCapabilityTooLow,
    GpuSimulated,
    MigInstanceIsIsolated,
    MpsDaemonEnded,
    MpsNotExclusive,
    MpsNotStarting,
    NvidiaOnly,
    ProgramMissing,
    SharedByMps,
    SocketPathTooLong,
)
from commonage.gpu.cuda.probe import digits
from commonage.gpu.isolation.level import Level, is_nvidia
from commonage.gpu.isolation.mps_daemon import MAX_PATH, PROGRAM, MpsDaemon
from commonage.ports.devices import ShareAssignment, ShareNotEnforced

log = logging.getLogger(__name__)
_MIN_CAPABILITY = 7.0  # Volta: before it clients share one address space, without limits
_TRY_AGAIN_S = 60.0
_TELL_FOR_S = 3600.0
_LOST = (
    "the MPS daemon of its GPU ended, so its programs can no longer use the GPU: start them again "
    "(in a notebook, restart the kernel)"
)


@dataclass(slots=True)
class _Served:
    daemon: MpsDaemon
    attempts: set[str] = field(default_factory=set)
    escape: str = ""
    ended_at: float = 0.0
    is_down: bool = False
    tell_until: float = 0.0


class Mps(Level):
    """MPS on the GPUs of this node, files in `folder`.

    `lost` is called with each attempt that lost its daemon: attempt id and reason.
    """

    isolation = Isolation.MPS

    def __init__(
        self,
        folder: Path,
        lost: Callable[[str, str], None] = lambda _attempt, _why: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._lost = lost
        self._now = now
        self._served: dict[str, _Served] = {}
        self._broken: dict[str, tuple[str, float]] = {}  # why a daemon failed to start; cached until

    def why_unavailable(self, device: Device) -> Reason | None:
        if device.simulated:
            return GpuSimulated()
        if not is_nvidia(device):
            return NvidiaOnly()
        if device.parent_uuid is not None:
            return MigInstanceIsIsolated()
        if shutil.which(PROGRAM) is None:
            return ProgramMissing(program=PROGRAM, package="Debian and Ubuntu: nvidia-compute-utils")
        if _capability(device) < _MIN_CAPABILITY:
            return ComputeCapabilityTooLow(required=str(_MIN_CAPABILITY), present=device.compute_capability)
        pipe = self._daemon(device.uuid).pipe
        if len(str(pipe)) > MAX_PATH:
            return SocketPathTooLong(path=str(pipe))
        error, retry_at = self._broken.get(device.uuid, ("", 0.0))
        return MpsNotStarting(error=error) if self._now() < retry_at else None

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Start the daemon if needed, and return the client's limits. If interrupted, `release` cleans up."""
        if len(assignment.shares) > 1:
            raise ShareNotEnforced("parts of several GPUs cannot be held by MPS: each GPU has a daemon of its own")
        (share,) = assignment.shares
        served = self._served.setdefault(share.device_uuid, _Served(self._daemon(share.device_uuid)))
        is_new = assignment.attempt_id not in served.attempts
        served.attempts.add(assignment.attempt_id)
        try:
            self._start(served)
        except ShareNotEnforced:
            if is_new:
                self.release(assignment)
            raise
        return {
            **served.daemon.variables,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.memory_mib}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, min(100, share.compute_milli // 10))),
        }

    def _start(self, served: _Served) -> None:
        uuid = served.daemon.uuid
        try:
            served.daemon.start()
        except ShareNotEnforced as error:
            self._broken[uuid] = error.message, self._now() + _TRY_AGAIN_S
            raise
        self._broken.pop(uuid, None)
        served.escape = served.daemon.exclusive_mode()

    def is_exclusive(self, uuid: str) -> bool:
        """True if only MPS can use the GPU now, so that no client escapes by clearing variables."""
        served = self._served.get(uuid)
        return served is not None and not served.escape

    def release(self, assignment: ShareAssignment) -> None:
        for share in assignment.shares:
            served = self._served.get(share.device_uuid)
            if served is None:
                continue
            served.attempts.discard(assignment.attempt_id)
            if not served.attempts:
                served.daemon.stop()
                del self._served[share.device_uuid]

    def settle(self, assignments: Sequence[ShareAssignment]) -> None:
        """Find the daemons of an earlier process by the holds that need them; end those without holds."""
        for assignment in assignments:
            for share in assignment.shares:
                served = self._served.setdefault(share.device_uuid, _Served(self._daemon(share.device_uuid)))
                served.attempts.add(assignment.attempt_id)
        for served in self._served.values():
            if served.daemon.pid() is not None:
                served.escape = served.daemon.exclusive_mode()
        needed = {served.daemon.folder for served in self._served.values()}
        for folder in self._folder.glob("*/pipe"):
            if folder.parent not in needed:
                MpsDaemon.in_folder(folder.parent).stop()

    def watch(self) -> Mapping[str, tuple[Reason, ...]]:
        """Restart daemons that died, and return notices about each GPU that is shared by MPS."""
        return {uuid: self._look_after(served) for uuid, served in self._served.items()}

    def _look_after(self, served: _Served) -> tuple[Reason, ...]:
        if served.daemon.pid() is None:
            self._revive(served)
        notices: list[Reason] = [SharedByMps()]
        if served.escape:
            notices.append(MpsNotExclusive(error=served.escape))
        if served.is_down or self._now() < served.tell_until:
            notices.append(MpsDaemonEnded(ended_at=served.ended_at))
        return tuple(notices)

    def _revive(self, served: _Served) -> None:
        uuid = served.daemon.uuid
        if not served.is_down:
            served.ended_at = self._now()
            served.is_down, served.tell_until = True, self._now() + _TELL_FOR_S
            log.error("the MPS daemon of %s ended, it had %d workloads; starting it again", uuid, len(served.attempts))
            for attempt in sorted(served.attempts):
                self._lost(attempt, _LOST)
        if self._now() < self._broken.get(uuid, ("", 0.0))[1]:
            return
        try:
            self._start(served)
            served.is_down = False
        except ShareNotEnforced as error:
            log.error("the MPS daemon of %s cannot be started again: %s", uuid, error.message)

    def _daemon(self, uuid: str) -> MpsDaemon:
        # A short name, because socket paths are limited; no two GPUs of a node have the same first digits.
        return MpsDaemon(uuid, self._folder / digits(uuid)[:8])


def _capability(device: Device) -> float:
    try:
        return float(device.compute_capability)
    except ValueError:
        return 0.0
