"""The generator of the published experiment, against known numbers of Go."""

from __future__ import annotations

from benchmarks.placement.gorandom import GoRandom


def test_numbers_equal_those_of_go() -> None:
    chance = GoRandom(1)
    assert [chance.below(100) for _ in range(10)] == [81, 87, 47, 59, 81, 18, 25, 40, 56, 0]
    chance = GoRandom(42)
    assert [chance.below(100) for _ in range(3)] == [5, 87, 68]


def test_permutations_are_deterministic_for_a_seed() -> None:
    items = list(range(50))
    GoRandom(7).shuffle(items)
    assert items != sorted(items) == list(range(50))
    assert sorted(GoRandom(7).permutation(50)) == list(range(50))
    assert GoRandom(7).permutation(50) == GoRandom(7).permutation(50) != GoRandom(8).permutation(50)


def test_powers_of_two_and_seed_zero() -> None:
    chance = GoRandom(0)
    assert all(0 <= chance.below(8) < 8 for _ in range(20))
    assert all(0 <= chance.int63() < 1 << 63 for _ in range(20))
