"""Wraps any devices: chooses the isolation level and slots of each, and enforces the shares of attempts.

Created by `detect.open_devices` for the server. An assignment is written to disk before it is applied, so that it is
released after any crash; GPUs that another server of this node allocates are not allocated here (`gpu_locks`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from commonage.domain.nodes import Allocation, Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import IsolationLost, IsolationNotAvailable, MpsNotForContainers
from commonage.gpu.environment import share_environment
from commonage.gpu.isolation.assignment_files import AssignmentFiles
from commonage.gpu.isolation.contexts import Contexts
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.level import Level
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.preload import Preload
from commonage.gpu.slots import Slots
from commonage.ports.devices import Devices, DeviceSample, ShareAssignment, ShareNotEnforced

log = logging.getLogger(__name__)
Wanted = Literal["auto", "driver-limit", "mig", "mps", "preload", "cooperative"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Settings for sharing this node's GPUs: files in `folder`, the requested level, and the slots.

    `in_containers`: workloads run in containers. `preload`: the interposer that the site has installed.
    """

    folder: Path
    wanted: Wanted = "auto"
    slots: Slots = field(default_factory=Slots)
    in_containers: bool = False
    preload: Path | None = None


def assignments_in(folder: Path) -> AssignmentFiles:
    """The holds of the server whose `Sharing` has this folder, for read access."""
    return AssignmentFiles(folder / "holds")


class IsolatedDevices:
    """The GPUs of `inner`, shared as `sharing` says. `levels` are best first; the last is always available."""

    def __init__(
        self,
        inner: Devices,
        sharing: Sharing,
        *,
        levels: Sequence[Level] | None = None,
        claims: GpuLocks | None = None,
        contexts: Contexts | None = None,
    ) -> None:
        self._inner = inner
        self._sharing = sharing
        self._warnings: list[tuple[str, str]] = []
        self._levels = tuple(levels or self._all_levels())
        self._by = {level.isolation: level for level in self._levels}
        self._assignments = assignments_in(sharing.folder)
        self._claims = claims or GpuLocks(f"data folder {sharing.folder.parent}")
        self._contexts = contexts or Contexts(sharing.folder / "contexts.json")
        self._held: dict[str, ShareAssignment] = {}  # content of the files, by attempt
        self._lock = threading.RLock()

    def _all_levels(self) -> tuple[Level, ...]:
        folder, inside = self._sharing.folder, self._sharing.in_containers
        preload = Preload(folder / "preload", self._sharing.preload, in_containers=inside)
        return DriverLimit(in_containers=inside), Mig(), Mps(folder / "mps", self._warn), preload, Cooperative()

    def _warn(self, attempt_id: str, words: str) -> None:
        self._warnings.append((attempt_id, words))

    # --- inventory ----------------------------------------------------------------------------------------

    def inventory(self) -> Sequence[Device]:
        found = self._inner.inventory()
        with self._lock:
            notices: dict[str, tuple[Reason, ...]] = {}
            for level in self._levels:
                notices.update(level.watch())
            return [self._with_state(device, notices.get(device.uuid, ())) for device in found]

    def _with_state(self, device: Device, notices: tuple[Reason, ...]) -> Device:
        slots = self._sharing.slots.of(device)
        if device.simulated:
            return replace(device, slots=slots, isolation=Isolation.COOPERATIVE)
        taken = self._claims.claim(device.parent_uuid or device.uuid)
        self._contexts.look_for(device)
        why_not = {level.isolation: self._why_not(level, device) for level in self._levels}
        level, why = self._choice(device, why_not)
        faults = (*device.faults, *(one for one in (taken, why) if one))
        return replace(
            device,
            slots=slots,
            isolation=level,
            unavailable=tuple((one, why) for one, why in why_not.items() if why and one is not level),
            faults=faults,
            notices=(*device.notices, *notices),
            context_mib=self._contexts.known().get(device.uuid, 0),
        )

    def _why_not(self, level: Level, device: Device) -> Reason | None:
        why = level.why_unavailable(device)
        if why or level.isolation is not Isolation.MPS or not self._sharing.in_containers:
            return why
        held = any(share.isolation is Isolation.MPS for share in self._shares_of(device.uuid))
        return None if held or self._sharing.wanted == "mps" else MpsNotForContainers()

    def _choice(self, device: Device, why_not: Mapping[Isolation, Reason | None]) -> tuple[Isolation, Reason | None]:
        """The best available level, or the requested one; and the fault, if the GPU takes no work because of it.

        While shares of a GPU are held it keeps their level: two levels at once would enforce neither.
        """
        held = next((one.isolation for one in self._shares_of(device.uuid)), None)
        if held is not None:
            cause = why_not[held]
            return held, cause and IsolationLost(level=held.value, cause=cause)
        if device.parent_uuid is not None or self._sharing.wanted == "auto":
            return next(level for level, why in why_not.items() if not why), None
        wanted = Isolation(self._sharing.wanted)
        cause = why_not[wanted]
        if cause:
            return Isolation.COOPERATIVE, IsolationNotAvailable(level=wanted.value, cause=cause)
        return wanted, None

    def _shares_of(self, uuid: str) -> Iterator[Share]:
        return (share for assignment in self._held.values() for share in assignment.shares if share.device_uuid == uuid)

    def measure(self) -> Sequence[DeviceSample]:
        return self._inner.measure()

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables of `inner` for these shares, with the measured context sizes."""
        return {**self._inner.environment(shares), **share_environment(shares, self._contexts.known())}

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self._inner.note_allocations(allocations)

    def resume(self, uuid: str | None = None) -> None:
        self._inner.resume(uuid)

    # --- enforcing shares ---------------------------------------------------------------------------------

    def enforce(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Enforce each share that is a part of its GPU, at the level with which it was allocated."""
        parts = tuple(share for share in assignment.shares if not share.whole)
        if not parts:
            return {}
        with self._lock:
            self._refuse_a_second_level(assignment.attempt_id, parts)
            try:
                self._held[assignment.attempt_id] = replace(assignment, shares=parts)
                self._assignments.put(self._held[assignment.attempt_id])
                # Frameworks get their limit at every level: this avoids failed allocations.
                variables = dict(self._by[Isolation.COOPERATIVE].apply(assignment))
                for isolation in dict.fromkeys(share.isolation for share in parts):
                    mine = tuple(share for share in parts if share.isolation is isolation)
                    variables |= self._by[isolation].apply(replace(assignment, shares=mine))
                return variables
            except OSError as error:
                self.release(assignment.attempt_id)
                raise ShareNotEnforced(f"its share of a GPU cannot be written down: {error}", retryable=True) from error
            except BaseException:
                self.release(assignment.attempt_id)
                raise

    def _refuse_a_second_level(self, attempt_id: str, parts: Sequence[Share]) -> None:
        for share in parts:
            others = (assignment for assignment in self._held.values() if assignment.attempt_id != attempt_id)
            levels = {
                one.isolation
                for assignment in others
                for one in assignment.shares
                if one.device_uuid == share.device_uuid
            }
            if levels - {share.isolation}:
                raise ShareNotEnforced(
                    f"its share was given as {share.isolation}, but GPU {share.device_index} is shared by "
                    f"{', '.join(sorted(levels))} now: two levels side by side would hold neither; start it again"
                )

    def release(self, attempt_id: str) -> None:
        """Release all shares of the attempt; failures are logged."""
        with self._lock:
            self._held.pop(attempt_id, None)
            assignment = self._assignments.get(attempt_id)
            if assignment is None:
                return
            for isolation in dict.fromkeys(share.isolation for share in assignment.shares):
                mine = tuple(share for share in assignment.shares if share.isolation is isolation)
                self._by[isolation].release(replace(assignment, shares=mine))
            self._assignments.drop(attempt_id)

    def settle(self, live: Collection[str]) -> None:
        """Keep the holds of live attempts, release all others."""
        with self._lock:
            for attempt_id in set(self._assignments.ids()) - set(live):
                log.info("attempt %s does not live any more: its share is released", attempt_id)
                self.release(attempt_id)
            self._held = {assignment.attempt_id: assignment for assignment in self._assignments}
            for level in self._levels:
                mine = (_only(assignment, level.isolation) for assignment in self._held.values())
                level.settle([assignment for assignment in mine if assignment.shares])

    def enforced(self) -> Collection[str]:
        with self._lock:
            return self._assignments.ids()

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        with self._lock:
            taken, self._warnings = self._warnings, []
            return [*self._inner.take_warnings(), *taken]

    def close(self) -> None:
        """Close the driver and release the claims. Shares of attempts stay enforced."""
        with self._lock:
            for level in self._levels:
                level.close()
            self._claims.close()
        self._inner.close()


def _only(assignment: ShareAssignment, isolation: Isolation) -> ShareAssignment:
    return replace(assignment, shares=tuple(share for share in assignment.shares if share.isolation is isolation))
