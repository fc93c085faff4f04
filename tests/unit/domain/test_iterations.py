"""Iterations of control loops: stuck or idle."""

from __future__ import annotations

from commonage.domain.iterations import Iterations


class Now:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_resting_loop_is_not_stuck() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    with iterations.rest():
        now.at += 3600
        health = iterations.health()
    assert (health.name, health.age_s, health.stuck) == ("one", 3600, False)


def test_long_iteration_is_stuck_until_it_ends() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    now.at += 60
    assert not iterations.health().stuck
    now.at += 1
    assert iterations.health().stuck
    assert iterations.health().age_s is None, "no iteration has ended"
    iterations.end()
    assert not iterations.health().stuck


def test_counts_breaks() -> None:
    now = Now()
    iterations = Iterations("one", now, within_s=60)
    iterations.begin()
    iterations.note_break()
    now.at += 3600
    health = iterations.health()
    assert (health.breaks, health.age_s, health.stuck) == (1, 3600, False)


def test_age_is_not_negative_if_the_clock_goes_back() -> None:
    now = Now()
    iterations = Iterations("one", now)
    iterations.end()
    now.at -= 10
    assert iterations.health().age_s == 0
