"""Requests that are only considered: queued for a trial, and smaller ones that would start now. For explain.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from itertools import islice

import numpy as np

from commonage.domain.requests import GpuRequest, Request
from commonage.scheduler.explain.shortfalls import might_start
from commonage.scheduler.fit.filters import usable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.plan import SchedulingPass, trial_pass
from commonage.scheduler.snapshot import Snapshot

MAX_AMOUNTS = 5
MAX_TRIES = 5  # candidates that a trial pass verifies
MIN_CPUS_MILLI, MIN_MEMORY_MIB = 100, 64  # a smaller request is not worth starting


def with_gang(snapshot: Snapshot, queued: QueuedRequest) -> list[QueuedRequest]:
    """The request and the other members of its gang: the queued ones, or those that would be submitted with it."""
    if queued.gang is None:
        return [queued]
    waiting = snapshot.queue.gang(queued.gang)
    if waiting or queued.gang_size < 2:
        return [queued, *(member for member in waiting if member.workload_id != queued.workload_id)]
    others = (f"{queued.workload_id}+{number}" for number in range(1, queued.gang_size))
    return [queued, *(replace(queued, workload_id=other, attempt=1) for other in others)]


@contextmanager
def queued_in(snapshot: Snapshot, queued_requests: Sequence[QueuedRequest]) -> Iterator[None]:
    """Inside the context, these requests are queued and replace those with the same ids."""
    before = [(queued.workload_id, snapshot.queue.get(queued.workload_id)) for queued in queued_requests]
    for queued, (_, old) in zip(queued_requests, before, strict=True):
        if old != queued:
            snapshot.enqueue(queued)
    try:
        yield
    finally:
        for queued, (workload_id, old) in zip(queued_requests, before, strict=True):
            if old is None:
                snapshot.dequeue(workload_id)
            elif old != queued:
                snapshot.enqueue(old)


def smaller_request(
    snapshot: Snapshot, queued: QueuedRequest, now: float, candidates: Sequence[Request] | None = None
) -> Request | None:
    """A smaller request that would start now, verified by a trial pass. `candidates`: from `candidates_beside`."""
    queued_requests = with_gang(snapshot, queued)
    for request in _candidates(snapshot, queued_requests, now) if candidates is None else candidates:
        since = [max(now, member.submitted_at) for member in queued_requests]
        instead = [
            replace(member, request=request, submitted_at=at) for member, at in zip(queued_requests, since, strict=True)
        ]
        with queued_in(snapshot, instead), trial_pass(snapshot, now) as done:
            if queued.workload_id in done.started:
                return request
    return None


def candidates_beside(done: SchedulingPass, queued: QueuedRequest) -> list[Request] | None:
    """Smaller requests that might start next to the result of the pass; None if `queued` itself may have changed it.

    A request behind the promises, that has not started, only protects nodes from later requests; an equal request
    protects the same.
    """
    slot = done.snapshot.queue.slot(queued.workload_id)
    place = done.order.place(slot)
    if queued.gang is not None or queued.workload_id in done.promises or not done.is_behind_promises(place):
        return None
    alike = done.order.request_classes == done.order.request_classes[place]
    return _might_start(done, [queued]) if np.count_nonzero(alike & done.order.leads) > 1 else None


def _candidates(snapshot: Snapshot, queued_requests: Sequence[QueuedRequest], now: float) -> list[Request]:
    """Smaller requests that might start instead of the queued ones; the largest first."""
    for member in queued_requests:
        snapshot.dequeue(member.workload_id)
    try:
        with trial_pass(snapshot, now) as done:
            return _might_start(done, queued_requests)
    finally:
        for member in queued_requests:
            snapshot.enqueue(member)


def _might_start(done: SchedulingPass, queued_requests: Sequence[QueuedRequest]) -> list[Request]:
    first, size = queued_requests[0], len(queued_requests)
    requests = _smaller_requests(done.snapshot.grid, first.request)
    good = (request for request in requests if might_start(done, replace(first, request=request), size))
    return list(islice(good, MAX_TRIES))


def _smaller_requests(grid: Grid, request: Request) -> Iterator[Request]:
    """The same request with less of a GPU, then with fewer cores or less memory; the largest first."""
    less_gpu = list(_with_less_gpu(grid, request))
    yield from less_gpu
    yield from _with_less_else(grid, request, less_gpu[:1])


def _with_less_gpu(grid: Grid, request: Request) -> Iterator[Request]:
    gpu = request.gpu
    if gpu is None:
        return
    nodes = np.flatnonzero(grid.ready)
    matches = usable(grid, grid.shape(request), nodes)
    mib, milli, total = grid.free_mib[nodes], grid.free_milli[nodes], grid.total_mib[nodes]
    is_instance = np.array([*(kind.parent_memory_mib > 0 for kind, _ in grid.kinds), False])[grid.kind[nodes]]
    untouched = matches & (mib == total) & (milli == 1000) & ~is_instance
    counts = np.unique(np.count_nonzero(untouched, axis=1)).tolist()
    amounts = np.unique(np.minimum(mib, milli * total // 1000)[matches]).tolist()
    most = max((gpu.memory_on(size) for size in np.unique(total[matches]).tolist()), default=0)
    for count in nlargest(MAX_AMOUNTS, (count for count in counts if 0 < count < gpu.whole)):
        yield replace(request, gpu=GpuRequest(whole=count, model=gpu.model))
    for amount in nlargest(MAX_AMOUNTS, (amount for amount in amounts if 0 < amount < most)):
        yield replace(request, gpu=GpuRequest(vram_mib=amount, model=gpu.model))


def _with_less_else(grid: Grid, request: Request, less_gpu: Sequence[Request]) -> Iterator[Request]:
    for number in np.argsort(-grid.cpus, kind="stable")[:MAX_AMOUNTS].tolist():
        cpus = min(request.cpus_milli, int(grid.cpus[number]))
        memory = min(request.memory_mib, int(grid.memory[number]))
        if cpus < MIN_CPUS_MILLI or memory < MIN_MEMORY_MIB:
            continue
        for smaller in (request, *less_gpu):
            yield replace(smaller, cpus_milli=cpus, memory_mib=memory)
