"""The mix of typical workloads, learned from submitted requests. Policies that look ahead read it.

`WorkloadMix` is a fixed mix; `MixEstimator` learns one from arrivals. Newer arrivals count more, older ones decay. The
estimator has no clock: decay follows the number of arrivals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commonage.domain.requests import GpuRequest, Request

POPULARITY = 0.95
"""The most popular requests up to this part of all are typical, as in "Beware of Fragmentation" (USENIX ATC 2023)."""
HALF_LIFE = 5000  # arrivals after which one counts half: about a month of a lab, or an hour of a large cluster
START_COUNTS = 5000  # the weight of a mix that was given at the start, in arrivals
GUESS_COUNTS = 50  # the weight of the built-in guess, in arrivals: a class of thirty that signs in twice outvotes it
LEARNED_POPULARITY = 0.99
"""The part of all arrivals that a learned mix keeps, the most popular first. Rare small requests fill the last gaps."""

ENOUGH = 1000  # arrivals before memory is evaluated, if the given mix has none
FOLD = 0.1  # buffered arrivals are counted once they make up this part of the total weight


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """Typical workloads, the most popular first, with weights that sum to 1. Empty before the first request.

    Each stands for all requests of the same CPUs and GPU request: memory, labels and NUMA constraints are ignored.
    `cpus_per_mib` is the thousandths of a CPU per MiB of memory over requests with a GPU; inf if unknown.
    """

    requests: tuple[Request, ...] = ()
    weights: tuple[float, ...] = ()
    cpus_per_mib: float = float("inf")

    @classmethod
    def of(cls, history: Iterable[Request] | Mapping[Request, float], popularity: float = POPULARITY) -> WorkloadMix:
        """Learn from past requests: one entry for each occurrence, or a mapping to its count or weight."""
        counts: dict[Request, float] = defaultdict(float)
        cpus = memory = 0.0
        for request, count in (history if isinstance(history, Mapping) else Counter(history)).items():
            counts[typical(request)] += count
            if request.gpu is not None:
                cpus, memory = cpus + count * request.cpus_milli, memory + count * request.memory_mib
        enough = popularity * sum(counts.values())
        seen, kept = 0.0, []
        for request in sorted(counts, key=lambda request: (counts[request], *_order(request)), reverse=True):
            if seen >= enough:
                break
            seen += counts[request]
            kept.append(request)
        weights = tuple(counts[request] / seen for request in kept)
        return cls(tuple(kept), weights, cpus / memory if memory else float("inf"))


def typical(request: Request) -> Request:
    return Request(request.cpus_milli, 0, request.gpu)


def _order(request: Request) -> tuple[int, int, int, int, str]:
    """Breaks ties of popularity: the larger request comes first."""
    gpu = request.gpu or GpuRequest()
    return (request.cpus_milli, 1000 if gpu.whole else gpu.fraction_milli, gpu.whole, gpu.vram_mib, gpu.model or "")


GUESS = WorkloadMix(
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
"""Typical requests before anything is known: whole GPUs, halves, thirds and quarters, sometimes several GPUs."""


class MixEstimator:
    """The decaying frequency of each typical request, on top of the mix given at the start (or a guess).

    `folds` rises each time that buffered arrivals are counted: a caller sees from it whether the mix can have changed.
    """

    def __init__(self, start: WorkloadMix) -> None:
        given, counts = (start, START_COUNTS) if start.requests else (GUESS, GUESS_COUNTS)
        self._counts = {request: weight * counts for request, weight in zip(given.requests, given.weights, strict=True)}
        self.folds = 0
        self._all = float(counts)
        self._waiting: list[Request] = []
        # CPUs and memory of requests with a GPU, both summed with the same weights.
        self._cpus = self._memory = 0.0
        self._with_state = 0
        if given.cpus_per_mib < float("inf"):
            taken = [request.cpus_milli * count for request, count in self._counts.items() if request.gpu is not None]
            self._cpus, self._memory, self._with_state = sum(taken), sum(taken) / given.cpus_per_mib, ENOUGH

    def add(self, request: Request) -> None:
        self._waiting.append(request)
        if len(self._waiting) >= FOLD * self._all:
            self._fold()

    def mix(self) -> WorkloadMix:
        self._fold()
        return WorkloadMix.of(self._counts, LEARNED_POPULARITY)

    def cpus_per_mib(self) -> float:
        """Thousandths of a CPU per MiB of memory over all requests with a GPU; inf before enough of them arrived."""
        self._fold()
        return self._cpus / self._memory if self._with_state >= ENOUGH and self._memory else float("inf")

    def _fold(self) -> None:
        """Count the buffered arrivals at once, and let all others decay by the same number of arrivals."""
        if not self._waiting:
            return
        fading = 0.5 ** (len(self._waiting) / HALF_LIFE)
        self._cpus, self._memory = self._cpus * fading, self._memory * fading
        self._counts = {request: count * fading for request, count in self._counts.items() if count > 0.01}
        for request, times in Counter(self._waiting).items():
            kind = typical(request)
            self._counts[kind] = self._counts.get(kind, 0.0) + times
            if request.gpu is not None:
                self._with_state += times
                self._cpus += times * request.cpus_milli
                self._memory += times * request.memory_mib
        self._all = sum(self._counts.values())
        self._waiting = []
        self.folds += 1


def mix_distance(left: WorkloadMix, right: WorkloadMix) -> float:
    """The distance of two mixes, 0 to 1: the part of the workloads that would have to differ."""
    weights = dict(zip(left.requests, left.weights, strict=True))
    for request, weight in zip(right.requests, right.weights, strict=True):
        weights[request] = weights.get(request, 0.0) - weight
    return sum(map(abs, weights.values())) / 2
