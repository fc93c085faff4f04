"""The turns of a loop."""

from __future__ import annotations

from commonage.domain.turns import Turns


class Now:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_a_loop_that_rests_is_never_stuck() -> None:
    now = Now()
    turns = Turns("one", now, within_s=60)
    turns.begin()
    with turns.rest():
        now.at += 3600
        health = turns.health()
    assert (health.name, health.age_s, health.stuck) == ("one", 3600, False)


def test_a_turn_that_takes_too_long_is_stuck_until_it_ends() -> None:
    now = Now()
    turns = Turns("one", now, within_s=60)
    turns.begin()
    now.at += 60
    assert not turns.health().stuck
    now.at += 1
    assert turns.health().stuck
    assert turns.health().age_s is None, "no turn has ended"
    turns.end()
    assert not turns.health().stuck


def test_a_loop_that_breaks_is_counted_and_rests() -> None:
    now = Now()
    turns = Turns("one", now, within_s=60)
    turns.begin()
    turns.note_break()
    now.at += 3600
    health = turns.health()
    assert (health.breaks, health.age_s, health.stuck) == (1, 3600, False)


def test_a_clock_that_goes_back_makes_no_age_below_zero() -> None:
    now = Now()
    turns = Turns("one", now)
    turns.end()
    now.at -= 10
    assert turns.health().age_s == 0
