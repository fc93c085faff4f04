"""The mix of typical workloads, learned from a history of requests. Policies that look ahead read it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commonage.domain.requests import GpuRequest, Request

POPULARITY = 0.95
"""The most popular requests up to this part of all are typical, as in "Beware of Fragmentation" (USENIX ATC 2023)."""


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """Typical workloads, the most popular first, with weights that sum to 1. Empty before the first request.

    Each stands for all requests of the same CPUs and GPU request: memory, labels and NUMA constraints are ignored.
    `cpus_per_mib` is the thousandths of a CPU per MiB of memory over requests with a GPU; inf if nothing is known of
    memory.
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
    """The request that represents this one in a mix."""
    return Request(request.cpus_milli, 0, request.gpu)


def _order(request: Request) -> tuple[int, int, int, int, str]:
    """Breaks ties of popularity: the larger request comes first."""
    gpu = request.gpu or GpuRequest()
    return (request.cpus_milli, 1000 if gpu.whole else gpu.fraction_milli, gpu.whole, gpu.vram_mib, gpu.model or "")
