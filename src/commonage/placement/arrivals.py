"""Learns from what arrives which workloads are typical: newer arrivals count for more, older ones fade.

Fed and asked by policies that look ahead (expected_waste). No clock: what fades does so by the number of arrivals.
"""

from __future__ import annotations

from collections import Counter

from commonage.domain.requests import GpuRequest, Request
from commonage.placement.mix import Mix, typical

HALF_LIFE = 5000
"""After so many arrivals one counts half: a month of a lab, an hour of a cluster that is always full."""
START_COUNTS = 5000
"""The mix that was given at the start counts as so many arrivals."""
GUESS_COUNTS = 50
"""Where none was given, a guess counts as so many: a class of thirty, signed in twice, has outvoted it."""
POPULARITY = 0.99
"""The most popular requests up to this part of all are kept. Rare small ones matter: they fill the last gaps."""

ENOUGH = 1000
"""Where nothing was known of memory, so many must come before it is judged: the first few say little of the others."""
FOLD = 0.1
"""New ones are counted together, once they are this part of all that counts."""

GUESS = Mix(
    (
        Request(4000, 0, GpuRequest(whole=1)),
        Request(2000, 0, GpuRequest(fraction_milli=250)),
        Request(2000, 0, GpuRequest(fraction_milli=500)),
        Request(8000, 0, GpuRequest(whole=2)),
        Request(2000, 0, GpuRequest(fraction_milli=333)),
        Request(1000, 0, GpuRequest(fraction_milli=100)),
        Request(16000, 0, GpuRequest(whole=4)),
        Request(32000, 0, GpuRequest(whole=8)),
    ),
    (0.3, 0.25, 0.2, 0.08, 0.07, 0.05, 0.03, 0.02),
)
"""What people ask for where nobody knows: whole cards, halves, thirds and quarters, sometimes several cards."""


class Arrivals:
    """How often each typical request came, fading, on top of the mix that was given at the start (or a guess).

    `folds` counts how often new ones were counted: who asked for the mix sees by it whether it can have changed.
    """

    def __init__(self, start: Mix) -> None:
        given, counts = (start, START_COUNTS) if start.requests else (GUESS, GUESS_COUNTS)
        self._counts = {request: weight * counts for request, weight in zip(given.requests, given.weights, strict=True)}
        self.folds = 0
        self._all = float(counts)
        self._waiting: list[Request] = []
        # Cpus and memory of what asked for a GPU, both in the amounts that so many workloads have.
        self._cpus = self._memory = 0.0
        self._judged = 0
        if given.cpus_per_mib < float("inf"):
            taken = [one.cpus_milli * count for one, count in self._counts.items() if one.gpu is not None]
            self._cpus, self._memory, self._judged = sum(taken), sum(taken) / given.cpus_per_mib, ENOUGH

    def add(self, request: Request) -> None:
        """One came."""
        self._waiting.append(request)
        if len(self._waiting) >= FOLD * self._all:
            self._fold()

    def mix(self) -> Mix:
        """What is typical now."""
        self._fold()
        return Mix.of(self._counts, POPULARITY)

    def cpus_per_mib(self) -> float:
        """Thousandths of cpus for each MiB of memory, over what came and asked for a GPU; inf before enough did."""
        self._fold()
        return self._cpus / self._memory if self._judged >= ENOUGH and self._memory else float("inf")

    def _fold(self) -> None:
        """Count those that wait to be counted, at once, and let all others fade as much as so many make them."""
        if not self._waiting:
            return
        fading = 0.5 ** (len(self._waiting) / HALF_LIFE)
        self._cpus, self._memory = self._cpus * fading, self._memory * fading
        self._counts = {request: count * fading for request, count in self._counts.items() if count > 0.01}
        for request, times in Counter(self._waiting).items():
            one = typical(request)
            self._counts[one] = self._counts.get(one, 0.0) + times
            if request.gpu is not None:
                self._judged += times
                self._cpus += times * request.cpus_milli
                self._memory += times * request.memory_mib
        self._all = sum(self._counts.values())
        self._waiting = []
        self.folds += 1


def apart(one: Mix, other: Mix) -> float:
    """How far two mixes are apart: the part of the workloads that would have to be others, 0 to 1."""
    weights = dict(zip(one.requests, one.weights, strict=True))
    for request, weight in zip(other.requests, other.weights, strict=True):
        weights[request] = weights.get(request, 0.0) - weight
    return sum(map(abs, weights.values())) / 2
