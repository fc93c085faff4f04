"""The idle loop: warns owners of idle sessions, then stops those or takes only their GPU. The rule is `domain.idle`.

Sessions report their activity by the API, each with its own token, so that a user can only mislead about their own. It
is kept in memory: after a restart each session reports again, before anything is decided about it. Warnings and
extensions are in the store.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.classes.meetings import Meetings
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.unused_gpus import UnusedGpus
from commonage.domain.idle import (
    NEVER,
    UNKNOWN_AFTER_S,
    Activity,
    ActivityState,
    Decision,
    IdleAction,
    IdleRule,
    activity_state,
    decide,
    ends_at,
)
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import IdleWarned, IdleWarningWithdrawn, StopRequested
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import GpuReleased, IdleTooLong, IdleWarning, TimeLimitNear
from commonage.domain.reasons.notes import ActivityUnknown
from commonage.domain.workloads import Kind, Spec, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
TICK_S = 2.0
_BY = "the limit of idle time"


class Offer(StrEnum):
    """An action that a notice offers to the owner."""

    EXTEND = "extend"
    RELEASE_GPU = "release-gpu"


@dataclass(frozen=True, slots=True)
class SessionNotice:
    """Something that the owner of a running session should know now, and what can be done about it."""

    reason: Reason
    offers: tuple[Offer, ...] = ()


@dataclass(slots=True)
class Idle:
    """`counts`: sessions that were warned, stopped, or lost their GPU, since the process started."""

    live_state: LiveState
    writer: Writer
    catalogue: Catalogue
    unused_gpus: UnusedGpus
    meetings: Meetings
    clock: Clock
    settings: ControlSettings
    counts: Counter[str] = field(default_factory=Counter)
    iterations: Iterations = field(init=False)
    _activities: dict[str, Activity] = field(default_factory=dict)
    _began_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_at = self.clock.now()
        self.iterations = Iterations("idle", self.clock.now)

    async def run(self) -> None:
        self._began_at = self.clock.now()
        while True:
            self.tick()
            with self.iterations.rest():
                await self.clock.sleep(TICK_S)

    def tick(self) -> None:
        if self.writer.stuck:
            return
        running = [one for one in self.live_state.in_state(State.RUNNING) if one.spec.kind is Kind.SESSION]
        attempts = {one.attempt.id for one in running if one.attempt is not None}
        self._activities = {attempt: found for attempt, found in self._activities.items() if attempt in attempts}
        for session in running:
            if session.stop is None:
                self._judge(session)

    def _judge(self, session: Workload) -> None:
        now, rule = self.clock.now(), self.rule_of(session.spec)
        if self._is_pending(session, now):
            return
        activity = self.activity_of(session)
        if self._action(session.spec, rule) is None:
            activity = None  # nothing would be done about it
        match decide(rule, activity, session.kept_until, session.idle_warned_at, now):
            case Decision.WARN if activity is not None:
                self.writer.note(session.id, IdleWarned(self._warning(session, rule, activity, now, now)))
                self.counts["warned"] += 1
            case Decision.WITHDRAW:
                self.writer.note(session.id, IdleWarningWithdrawn())
            case Decision.ACT if activity is not None:
                self._act(session, rule, now - activity.active_at)

    def _is_pending(self, session: Workload, now: float) -> bool:
        """True while its first report may still come: nothing is decided yet."""
        attempt = session.attempt
        if attempt is None or attempt.id in self._activities:
            return attempt is None
        return now - max(self._began_at, attempt.started_at or 0.0) < UNKNOWN_AFTER_S

    def _act(self, session: Workload, rule: IdleRule, idle_s: float) -> None:
        idle: Reason = IdleTooLong(idle_s=idle_s)
        cause = StopCause.IDLE
        if self._action(session.spec, rule) is IdleAction.RELEASE_GPU:
            idle, cause = GpuReleased(cause=idle), StopCause.GPU_RELEASE
        log.info("session %s of %s: %s", session.id, session.spec.owner, idle)
        self.writer.note(session.id, StopRequested(StopRequest(_BY, self.clock.now(), cause, idle)))
        self.counts[cause.value] += 1

    def _action(self, spec: Spec, rule: IdleRule) -> IdleAction | None:
        """The action once the session is idle; None if the rule only takes the GPU, and the session has none."""
        if rule.action is not IdleAction.RELEASE_GPU or self._needs_gpu(spec):
            return IdleAction.STOP
        return None if spec.request.gpu is None else IdleAction.RELEASE_GPU

    def _needs_gpu(self, spec: Spec) -> bool:
        environment = self.catalogue.get(spec.environment)
        return environment is not None and (environment.needs_gpu or environment.min_vram_mib > 0)

    # --- reports and questions ----------------------------------------------------------------------------------------

    def rule_of(self, spec: Spec) -> IdleRule:
        """The rule for the session. Its environment comes first, then its tenant, then the settings.

        In a meeting no session ends for being idle: students listen, too.
        """
        environment = self.catalogue.get(spec.environment)
        of_tenant = self.settings.rules.tenant(spec.tenant).idle.over(self.settings.idle)
        rule = of_tenant if environment is None else environment.idle.over(of_tenant)
        return replace(rule, after_s=NEVER) if self.meetings.are_on(spec) else rule

    def note(self, attempt_id: str, activity: Activity) -> None:
        self._activities[attempt_id] = activity

    def activity_of(self, session: Workload) -> Activity | None:
        return None if session.attempt is None else self._activities.get(session.attempt.id)

    def state_of(self, workload: Workload) -> ActivityState | None:
        """The activity as it is shown; None if it is not a running session."""
        if workload.spec.kind is not Kind.SESSION or workload.state is not State.RUNNING:
            return None
        return activity_state(self.activity_of(workload), self.clock.now())

    def may_release(self, spec: Spec) -> bool:
        has_gpu = spec.kind is Kind.SESSION and spec.request.gpu is not None
        return has_gpu and not self._needs_gpu(spec) and not self.meetings.are_on(spec)

    def offers(self, workload: Workload) -> tuple[Offer, ...]:
        """Actions that are possible before a running workload reaches a limit."""
        if workload.state is not State.RUNNING or workload.stop is not None:
            return ()
        spec, rule = workload.spec, self.rule_of(workload.spec)
        ends_when_idle = spec.kind is Kind.SESSION and rule.after_s and self._action(spec, rule) is not None
        found = [Offer.EXTEND] if ends_when_idle or workload.deadline is not None else []
        return (*found, Offer.RELEASE_GPU) if self.may_release(spec) else tuple(found)

    def notices(self, workload: Workload) -> Sequence[SessionNotice]:
        """Notices to the owner of a running workload, the most urgent first."""
        if workload.state is not State.RUNNING or workload.stop is not None:
            return ()
        now, rule = self.clock.now(), self.rule_of(workload.spec)
        release = (Offer.RELEASE_GPU,) if self.may_release(workload.spec) else ()
        found: list[SessionNotice] = []
        activity = self.activity_of(workload)
        if workload.idle_warned_at is not None and activity is not None:
            warning = self._warning(workload, rule, activity, workload.idle_warned_at, now)
            found.append(SessionNotice(warning, (Offer.EXTEND, *release)))
        if workload.warned and workload.deadline is not None:
            left_s = max(0.0, workload.deadline - now)
            found.append(SessionNotice(TimeLimitNear(left_s=left_s), (Offer.EXTEND,)))
        unused = self.unused_gpus.wanted(workload) if release else None
        if unused is not None:
            found.append(SessionNotice(unused, release))
        return found

    def notes(self, workload: Workload) -> tuple[Reason, ...]:
        """The notices, including that the activity is unknown if a limit depends on it."""
        found = tuple(one.reason for one in self.notices(workload) if not isinstance(one.reason, TimeLimitNear))
        is_unknown = self.state_of(workload) is ActivityState.UNKNOWN and self.rule_of(workload.spec).after_s
        is_pending = self._is_pending(workload, self.clock.now())
        return (*found, ActivityUnknown()) if is_unknown and not is_pending else found

    def _warning(
        self, session: Workload, rule: IdleRule, activity: Activity, warned_at: float, now: float
    ) -> IdleWarning:
        at = ends_at(rule, activity.active_at, session.kept_until, warned_at)
        keeps_cpu = self._action(session.spec, rule) is IdleAction.RELEASE_GPU
        return IdleWarning(idle_s=now - activity.active_at, left_s=max(0.0, at - now), keeps_cpu=keeps_cpu)
