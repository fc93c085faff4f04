"""Generates smaller requests that might fit into the free resources. explain.py tries them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import nlargest

import numpy as np

from commonage.domain.requests import GpuRequest, Request
from commonage.scheduler.fit.filters import matching
from commonage.scheduler.model.grid import Grid

MAX_AMOUNTS = 5
MIN_CPUS_MILLI, MIN_MEMORY_MIB = 100, 64  # a smaller request is not worth starting


def smaller_requests(grid: Grid, request: Request) -> Iterator[Request]:
    """The same request with less of a GPU, then with fewer cores or less memory; the largest first."""
    yield from _with_less_gpu(grid, request)
    yield from _with_less_else(grid, request)


def _with_less_gpu(grid: Grid, request: Request) -> Iterator[Request]:
    gpu = request.gpu
    if gpu is None:
        return
    shape = grid.shape(request)
    counts, amounts, most = set(), set(), 0
    for number in np.flatnonzero(grid.ready).tolist():
        devices = list(matching(grid, shape, number))
        untouched = 0
        for index, device in devices:
            mib, milli = int(grid.free_mib[number, index]), int(grid.free_milli[number, index])
            untouched += mib == device.memory_mib and milli == 1000 and device.parent_uuid is None
            amounts.add(min(mib, milli * device.memory_mib // 1000))
            most = max(most, gpu.memory_on(device.memory_mib))
        counts.add(untouched)
    for count in nlargest(MAX_AMOUNTS, (count for count in counts if 0 < count < gpu.whole)):
        yield replace(request, gpu=GpuRequest(whole=count, model=gpu.model))
    for amount in nlargest(MAX_AMOUNTS, (amount for amount in amounts if 0 < amount < most)):
        yield replace(request, gpu=GpuRequest(vram_mib=amount, model=gpu.model))


def _with_less_else(grid: Grid, request: Request) -> Iterator[Request]:
    less_gpu = next(_with_less_gpu(grid, request), None)
    for number in np.argsort(-grid.cpus, kind="stable")[:MAX_AMOUNTS].tolist():
        cpus = min(request.cpus_milli, int(grid.cpus[number]))
        memory = min(request.memory_mib, int(grid.memory[number]))
        if cpus < MIN_CPUS_MILLI or memory < MIN_MEMORY_MIB:
            continue
        for smaller in (request, less_gpu):
            if smaller is not None:
                yield replace(smaller, cpus_milli=cpus, memory_mib=memory)
