"""The turns of a loop."""

from __future__ import annotations

from commonage.domain.iterations import Iterations


class Now:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_a_loop_that_rests_is_never_stuck() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    with iterations.rest():
        now.at += 3600
        health = iterations.health()
    assert (health.name, health.age_s, health.stuck) == ("one", 3600, False)


def test_a_turn_that_takes_too_long_is_stuck_until_it_ends() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    now.at += 60
    assert not iterations.health().stuck
    now.at += 1
    assert iterations.health().stuck
    assert iterations.health().age_s is None, "no turn has ended"
    iterations.end()
    assert not iterations.health().stuck


def test_a_loop_that_breaks_is_counted_and_rests() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    iterations.note_break()
    now.at += 3600
    health = iterations.health()
    assert (health.breaks, health.age_s, health.stuck) == (1, 3600, False)


def test_a_clock_that_goes_back_makes_no_age_below_zero() -> None:
    now = Now()
    iterations = Iterations("one", now)
    iterations.end()
    now.at -= 10
    assert iterations.health().age_s == 0
