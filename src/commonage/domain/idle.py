"""Idle sessions: when the owner is warned, and when the session is stopped or gives its GPU back. Pure.

Activity is what people and their programs do: a kernel that computes, a program in a terminal, output. An open page and
CPU use alone do not count as activity. Where the activity of a session is not known, the session counts as active.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

NEVER = 0
"""An `after_s` or `max_age_s` of 0: never, whatever a more general level says."""
UNKNOWN_AFTER_S = 300.0
"""Without a report for this time the activity of a session is unknown."""
KEEP_S = 7200
"""How long "keep for two more hours" keeps."""


class IdleAction(StrEnum):
    """The action on an idle session: it ends, or is replaced by one without a GPU."""

    STOP = "stop"
    RELEASE_GPU = "release-gpu"


@dataclass(frozen=True, slots=True)
class IdleRule:
    """The limits that one level (environment, tenant, settings) sets for sessions. None: a more general level decides.

    `after_s`: idle for this long, it is stopped; `warn_s`: its owner is warned this long before. `max_age_s`: the
    longest that a session may run.
    """

    after_s: int | None = None
    warn_s: int | None = None
    action: IdleAction | None = None
    max_age_s: int | None = None

    def over(self, general: IdleRule) -> IdleRule:
        """This rule, completed by a more general one."""
        own = ((one.name, getattr(self, one.name)) for one in fields(self))
        return IdleRule(**{name: getattr(general, name) if value is None else value for name, value in own})


NO_RULE = IdleRule()
DEFAULT_RULE = IdleRule(NEVER, 600, IdleAction.STOP, NEVER)


@dataclass(frozen=True, slots=True)
class Activity:
    """A session's report. `active_at`: when it was last used; the time of the report while `busy`.

    `programs` are named by the session: kernels that compute, programs in terminals. `is_measured` False: something
    runs in it whose use cannot be measured, such as a desktop, so that it counts as active.
    """

    reported_at: float
    active_at: float
    busy: bool = False
    programs: tuple[str, ...] = ()
    is_measured: bool = True


class ActivityState(StrEnum):
    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


IDLE_FROM_S = 60.0
"""A session is shown as idle from here on."""


def activity_state(activity: Activity | None, now: float) -> ActivityState:
    if activity is None or now - activity.reported_at > UNKNOWN_AFTER_S or not activity.is_measured:
        return ActivityState.UNKNOWN
    is_idle = not activity.busy and now - activity.active_at >= IDLE_FROM_S
    return ActivityState.IDLE if is_idle else ActivityState.ACTIVE


class Decision(StrEnum):
    """The next step for a session."""

    NOTHING = "nothing"
    WARN = "warn"
    WITHDRAW = "withdraw"  # the warning no longer holds
    ACT = "act"


def ends_at(rule: IdleRule, active_at: float, kept_until: float | None, warned_at: float | None) -> float:
    """When an idle session is stopped: not before `kept_until`, and not before its owner has been warned for the
    warning time.
    """
    at = max(active_at + (rule.after_s or 0), kept_until or 0.0)
    return at if warned_at is None else max(at, warned_at + _warn_s(rule))


def decide(
    rule: IdleRule, activity: Activity | None, kept_until: float | None, warned_at: float | None, now: float
) -> Decision:
    """The decision about a running session. `warned_at`: when its owner was warned, None if no warning holds."""
    withdrawn = Decision.NOTHING if warned_at is None else Decision.WITHDRAW
    if not rule.after_s or activity is None or activity.busy:
        return withdrawn
    if activity_state(activity, now) is ActivityState.UNKNOWN:
        return withdrawn
    warns_at = max(activity.active_at + rule.after_s, kept_until or 0.0) - _warn_s(rule)
    if warned_at is None:
        return Decision.WARN if now >= warns_at else Decision.NOTHING
    if activity.active_at > warned_at or now < warns_at:
        return Decision.WITHDRAW
    return Decision.ACT if now >= ends_at(rule, activity.active_at, kept_until, warned_at) else Decision.NOTHING


def report_interval_s(rule: IdleRule) -> float:
    """How often a session should report, so that its page shows a warning well before the stop."""
    if not rule.after_s:
        return 60.0
    return min(60.0, max(2.0, min(rule.after_s, _warn_s(rule)) / 5))


def _warn_s(rule: IdleRule) -> float:
    return float(min(rule.warn_s or 0, rule.after_s or 0))
