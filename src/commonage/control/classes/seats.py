"""The newest session of each student in a class, and when it last computed, as written and measured. In memory.

Asked by the use cases of classes and their loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.domain.classes import Class, Observed
from commonage.domain.reasons import Reason
from commonage.domain.usage import IDLE_BELOW, Measured
from commonage.domain.workloads import Kind, State, Workload, workload_of
from commonage.ports.store import Filter, Store

USES_CPU_MILLI = 100  # an unused Jupyter server takes less
SETTLES_S = 60.0  # the start of a session computes, too, and is no use of it
_LOOK_BACK = 2000


@dataclass(slots=True)
class Seats:
    """`why`: the reason why a workload is in its state."""

    store: Store
    live_state: LiveState
    settings: ControlSettings
    why: Callable[[Workload], Reason]
    _newest: dict[tuple[str, str], Workload] = field(default_factory=dict)  # by class and owner
    _used_at: dict[str, float] = field(default_factory=dict)  # by attempt

    async def open(self, since: float) -> None:
        """Read the sessions of classes that are live, or were submitted after `since`."""
        for one in self.settings.classes.values():
            page = await self.store.workloads(
                Filter(kinds=(Kind.SESSION,), tenant=one.tenant, text=one.name, submitted_after=since), limit=_LOOK_BACK
            )
            for workload in reversed(page.items):
                self.changed(workload)
        self.read_live()

    def read_live(self) -> None:
        """Called when classes were added: their sessions may run already."""
        for state in (State.HELD, State.QUEUED, State.STARTING, State.RUNNING):
            for workload in self.live_state.in_state(state):
                self.changed(workload)

    def changed(self, workload: Workload) -> None:
        """Called after each write of a workload."""
        spec = workload.spec
        one = self.settings.classes.get(spec.name) if spec.kind is Kind.SESSION else None
        if one is None or not (one.has(spec) or spec.class_name == one.name):
            return
        known = self._newest.get((one.name, spec.owner))
        if known is None or workload.id >= known.id:
            self._newest[one.name, spec.owner] = workload
            if known is not None and known.attempt is not None and known.attempt != workload.attempt:
                ended = known.attempt.id
                if workload.attempt is None or workload.attempt.id != ended:
                    self._used_at.pop(ended, None)

    def measured(self, attempt_id: str, measured: Measured, at: float) -> None:
        """Called with each measurement of an attempt."""
        uses_cpu, uses_gpu = (measured.cpu_milli or 0) >= USES_CPU_MILLI, (measured.gpu or 0.0) >= IDLE_BELOW
        if measured.running_s < SETTLES_S + measured.span_s or not (uses_cpu or uses_gpu):
            return
        workload = self.live_state.get(workload_of(attempt_id))
        if workload is None or (workload.spec.name, workload.spec.owner) not in self._newest:
            return
        shares = () if workload.attempt is None else workload.attempt.allocation.shares
        if uses_cpu or not all(share.simulated for share in shares):  # a simulated GPU is busy without a program
            self._used_at[attempt_id] = at

    def session(self, class_name: str, student: str) -> Workload | None:
        """The newest one, live or ended."""
        return self._newest.get((class_name, student))

    def live(self, one: Class) -> Sequence[Workload]:
        """The sessions of the class that have not ended, by owner."""
        found = (self._newest[key] for key in sorted(self._newest) if key[0] == one.name)
        return [workload for workload in found if one.has(workload.spec) and not workload.state.is_terminal]

    def without_class(self) -> Sequence[Workload]:
        """Live sessions that were started for a class that is deleted, or belongs to another tenant now."""
        classes = self.settings.classes
        return [
            one
            for one in self.live_state
            if one.spec.class_name
            and not one.state.is_terminal
            and not (one.spec.class_name in classes and classes[one.spec.class_name].has(one.spec))
        ]

    def observed(self, one: Class, student: str, since: float, failed: Reason | None) -> Observed:
        """The student's session that was submitted after `since`. `failed`: why none could be started."""
        found = self.session(one.name, student)
        if found is None or (found.state.is_terminal and found.submitted_at < since):
            return Observed(None, reason=failed)
        attempt = found.attempt
        used_at = None if attempt is None else self._used_at.get(attempt.id)
        since = found.since
        if attempt is not None and found.state is State.RUNNING:
            since = attempt.started_at or since
        return Observed(found.state, since, self.why(found), found.attempts, used_at)

    def forget(self) -> None:
        """Drop what belongs to classes that are gone, and measurements of attempts that have ended."""
        self._newest = {key: one for key, one in self._newest.items() if key[0] in self.settings.classes}
        live = {one.attempt.id for one in self._newest.values() if one.attempt is not None}
        self._used_at = {key: at for key, at in self._used_at.items() if key in live}
