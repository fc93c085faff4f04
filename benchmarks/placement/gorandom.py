"""The random numbers of the published experiment, so that each seed gives the same workloads as there.

Go's `math/rand` is an additive lagged Fibonacci generator of Mitchell and Reeds: each number is the sum of those 607
and 273 before it. Its initial state is a fixed state, far along the sequence, mixed with the seed. The fixed state is
found here by jumping ahead in the recurrence. Called by `inflation` only.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Words = npt.NDArray[np.uint64]

LENGTH, TAP = 607, 273
WARM_UP = 7_800_000_000_000
"""The position of the fixed state in the sequence that starts from seed 1."""
_WORD = (1 << 64) - 1
_LEHMER, _MODULUS = 48271, (1 << 31) - 1
_SEED_INSTEAD_OF_0 = 89482311


class GoRandom:
    """Go's `rand.New(rand.NewSource(seed))`, as far as the experiment uses it."""

    def __init__(self, seed: int) -> None:
        self._cells = [int(cell) ^ fixed for cell, fixed in zip(_seeded(seed, 40, 20), _fixed_state(), strict=True)]
        self._tap, self._feed = 0, LENGTH - TAP

    def int63(self) -> int:
        """The next number, 63 bits."""
        self._tap = (self._tap - 1) % LENGTH
        self._feed = (self._feed - 1) % LENGTH
        word = (self._cells[self._feed] + self._cells[self._tap]) & _WORD
        self._cells[self._feed] = word
        return word & (_WORD >> 1)

    def below(self, n: int) -> int:
        """Go's `Intn`: 0 <= number < n <= 2**31 - 1."""
        if n & (n - 1) == 0:
            return self.int63() >> 32 & (n - 1)
        largest = (1 << 31) - 1 - (1 << 31) % n
        drawn = self.int63() >> 32
        while drawn > largest:
            drawn = self.int63() >> 32
        return drawn % n

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Go's `Shuffle`, in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self._scaled(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, n: int) -> list[int]:
        """Go's `Perm`: 0 to n - 1 in a random order."""
        order = [0] * n
        for i in range(n):
            j = self.below(i + 1)
            order[i] = order[j]
            order[j] = i
        return order

    def _scaled(self, n: int) -> int:
        """0 <= number < n, by multiplying 32 bits instead of dividing (Lemire's method), which draws differently."""
        product = (self.int63() >> 31) * n
        threshold = (1 << 32) % n
        while product & 0xFFFFFFFF < threshold:
            product = (self.int63() >> 31) * n
        return product >> 32


def _seeded(seed: int, high: int, middle: int) -> list[int]:
    """LENGTH words, each put together of three numbers of a Lehmer generator; the first twenty numbers are dropped."""
    x = seed % _MODULUS or _SEED_INSTEAD_OF_0
    words = []
    for i in range(-20, LENGTH):
        x = x * _LEHMER % _MODULUS
        if i >= 0:
            word = x << high
            x = x * _LEHMER % _MODULUS
            word ^= x << middle
            x = x * _LEHMER % _MODULUS
            words.append((word ^ x) & _WORD)
    return words


@cache
def _fixed_state() -> tuple[int, ...]:
    """The state of the generator that started from seed 1 and has drawn WARM_UP numbers."""
    cell_of_draw = [(LENGTH - TAP - 1 - draw) % LENGTH for draw in range(LENGTH)]
    start = np.array(_seeded(1, 20, 10), np.uint64)[cell_of_draw]
    following = np.concatenate([start, np.zeros(LENGTH, np.uint64)])
    for k in range(LENGTH, 2 * LENGTH):
        following[k] = following[k - LENGTH] + following[k - TAP]
    # The number WARM_UP steps on is a sum of the first LENGTH ones; the factors are those of x**WARM_UP.
    factors = _power_of_x(WARM_UP)
    cells = [0] * LENGTH
    for i in range(LENGTH):
        cells[cell_of_draw[(WARM_UP + i) % LENGTH]] = int(np.dot(factors, following[i : i + LENGTH]))
    return tuple(cells)


def _power_of_x(exponent: int) -> Words:
    """x**exponent modulo x**607 - x**334 - 1, coefficients modulo 2**64, by squaring."""
    result, base = np.array([1], np.uint64), np.array([0, 1], np.uint64)
    while exponent:
        if exponent & 1:
            result = _reduced(np.convolve(result, base))
        base = _reduced(np.convolve(base, base))
        exponent >>= 1
    return np.pad(result, (0, LENGTH - len(result)))


def _reduced(polynomial: Words) -> Words:
    while len(polynomial) > LENGTH:
        low, high = polynomial[:LENGTH], polynomial[LENGTH:]
        polynomial = np.zeros(max(LENGTH, len(high) + LENGTH - TAP), np.uint64)
        polynomial[:LENGTH] += low
        polynomial[: len(high)] += high
        polynomial[LENGTH - TAP : LENGTH - TAP + len(high)] += high
    return polynomial
