"""Idle sessions: a busy session is never stopped, and no session is stopped without a warning."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.idle import (
    DEFAULT_RULE,
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
    report_interval_s,
)

RULE = IdleRule(3600, 600, IdleAction.STOP, NEVER)


def idle_since(at: float, now: float) -> Activity:
    return Activity(now, at)


def test_a_session_is_warned_before_its_time_and_stopped_after_it() -> None:
    assert decide(RULE, idle_since(0, 2999), None, None, 2999) is Decision.NOTHING
    assert decide(RULE, idle_since(0, 3000), None, None, 3000) is Decision.WARN
    assert decide(RULE, idle_since(0, 3599), None, 3000, 3599) is Decision.NOTHING
    assert decide(RULE, idle_since(0, 3600), None, 3000, 3600) is Decision.ACT


def test_a_late_warning_still_gives_the_whole_time_of_a_warning() -> None:
    assert decide(RULE, idle_since(0, 9000), None, None, 9000) is Decision.WARN
    assert decide(RULE, idle_since(0, 9599), None, 9000, 9599) is Decision.NOTHING
    assert decide(RULE, idle_since(0, 9600), None, 9000, 9600) is Decision.ACT


def test_use_withdraws_the_warning() -> None:
    assert decide(RULE, idle_since(3100, 3600), None, 3000, 3600) is Decision.WITHDRAW
    assert decide(RULE, Activity(3600, 3600, busy=True), None, 3000, 3600) is Decision.WITHDRAW


def test_a_kept_session_is_warned_again_before_the_time_ends_for_which_it_was_kept() -> None:
    assert decide(RULE, idle_since(0, 9000), 10_000, None, 9000) is Decision.NOTHING
    assert decide(RULE, idle_since(0, 9400), 10_000, None, 9400) is Decision.WARN
    assert decide(RULE, idle_since(0, 9999), 10_000, 9400, 9999) is Decision.NOTHING
    assert decide(RULE, idle_since(0, 10_000), 10_000, 9400, 10_000) is Decision.ACT


@pytest.mark.parametrize(
    "activity", [None, Activity(0, 0), Activity(9000, 0, is_measured=False)], ids=["none", "old", "not-measured"]
)
def test_unknown_activity_counts_as_use(activity: Activity | None) -> None:
    assert decide(RULE, activity, None, None, 9000) is Decision.NOTHING
    assert decide(RULE, activity, None, 8000, 9000) is Decision.WITHDRAW
    assert activity_state(activity, 9000) is ActivityState.UNKNOWN


def test_the_activity_is_shown_as_idle_after_a_minute() -> None:
    assert activity_state(Activity(100, 50), 100) is ActivityState.ACTIVE
    assert activity_state(Activity(100, 0), 100) is ActivityState.IDLE
    assert activity_state(Activity(100, 0, busy=True), 100) is ActivityState.ACTIVE


def test_never_means_never_whatever_a_more_general_level_says() -> None:
    rule = IdleRule(NEVER).over(IdleRule(60, 10)).over(DEFAULT_RULE)
    assert (rule.after_s, rule.warn_s, rule.action) == (NEVER, 10, IdleAction.STOP)
    assert decide(rule, idle_since(0, 1e6), None, None, 1e6) is Decision.NOTHING


def test_a_session_reports_several_times_within_its_warning() -> None:
    assert report_interval_s(DEFAULT_RULE) == 60
    assert report_interval_s(RULE) == 60
    assert report_interval_s(replace(RULE, after_s=60, warn_s=20)) == 4
    assert report_interval_s(replace(RULE, after_s=20, warn_s=0)) == 2


# --- a life of one session, with restarts of the control plane ------------------------------------------------------


@dataclass
class Life:
    """A session that is checked from time to time; the store keeps `warned_at` and `kept_until`."""

    rule: IdleRule
    now: float = 0.0
    active_at: float = 0.0
    busy: bool = False
    kept_until: float | None = None
    warned_at: float | None = None
    is_known: bool = True
    ended: bool = False

    def judge(self) -> None:
        activity = Activity(self.now, self.now if self.busy else self.active_at, self.busy) if self.is_known else None
        decision = decide(self.rule, activity, self.kept_until, self.warned_at, self.now)
        if decision is Decision.WARN:
            self.warned_at = self.now
        elif decision is Decision.WITHDRAW:
            self.warned_at = None
        elif decision is Decision.ACT:
            self._check_end()
            self.ended = True

    def _check_end(self) -> None:
        assert self.is_known
        assert not self.busy
        assert self.now - self.active_at >= (self.rule.after_s or 0)
        assert self.warned_at is not None
        assert self.now - self.warned_at >= min(self.rule.warn_s or 0, self.rule.after_s or 0)
        assert self.now >= (self.kept_until or 0)
        assert self.active_at <= self.warned_at
        assert self.now >= ends_at(self.rule, self.active_at, self.kept_until, self.warned_at)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["rest", "rest", "rest", "work", "done", "touch", "keep", "silent", "heard", "down"]),
        st.floats(0.5, 4000),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 7200), st.integers(0, 3600))
def test_no_life_ends_without_a_warning_or_while_it_is_busy(
    steps: list[tuple[str, float]], after: int, warn: int
) -> None:
    life = Life(IdleRule(after, warn, IdleAction.STOP, NEVER))
    for what, seconds in steps:
        if life.ended:
            break
        if what in ("work", "done"):
            life.busy = what == "work"
            life.active_at = life.now
        elif what == "touch":
            life.active_at = life.now
        elif what == "keep":
            life.kept_until, life.warned_at = life.now + 7200, None
        elif what in ("silent", "heard"):
            life.is_known = what == "heard"
        if life.busy:
            life.active_at = life.now + seconds
        life.now += seconds
        if what != "down":  # while the control plane is down nothing is judged, and nothing is forgotten that matters
            life.judge()


@given(st.integers(60, 7200), st.integers(0, 600))
def test_an_idle_session_ends(after: int, warn: int) -> None:
    life = Life(IdleRule(after, warn, IdleAction.STOP, NEVER))
    for _ in range(2 * (after + warn) + 10):
        life.now += 1
        life.judge()
    assert life.ended


def test_unknown_begins_some_minutes_after_the_last_report() -> None:
    assert activity_state(Activity(0, 0), UNKNOWN_AFTER_S) is ActivityState.IDLE
    assert activity_state(Activity(0, 0), UNKNOWN_AFTER_S + 1) is ActivityState.UNKNOWN
