"""Explains why a workload waits: shortfalls, holders, jobs ahead, a smaller request, and the expected start.

`explain` runs the pass that the schedule loop would run, for one workload at a time. `why_waiting` is the short answer
for lists, from the last plan. `ever_fits` is called at submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commonage.domain.explanations import (
    Ahead,
    Confidence,
    Explanation,
    Holder,
    JobsAhead,
    Precedence,
    SiteChoice,
)
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.requests import Request
from commonage.scheduler.explain.expected_start import expected_start
from commonage.scheduler.explain.shortfalls import shortfalls
from commonage.scheduler.explain.site_choices import promised_site, site_choices
from commonage.scheduler.explain.smaller_requests import candidates_beside, queued_in, smaller_request, with_gang
from commonage.scheduler.fit.filters import matching, refusal, usable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import Plan, trial_pass
from commonage.scheduler.queue.queue import QueueOrder
from commonage.scheduler.snapshot import Snapshot

MAX_HOLDERS = 5
MAX_SHORTFALLS = 3


def explain(snapshot: Snapshot, queued: QueuedRequest, now: float) -> Explanation:
    """The explanation for a queued request, or for one that a user considers; a considered gang is assumed complete."""
    queued, is_queued = snapshot.restricted(queued), queued.workload_id in snapshot.queue
    with queued_in(snapshot, with_gang(snapshot, queued)):
        with trial_pass(snapshot, now) as done:
            position, length = done.order.place(snapshot.queue.slot(queued.workload_id)) + 1, len(done.order)
            allocated = done.started.get(queued.workload_id)
            if allocated is not None:
                return Explanation(
                    workload_id=queued.workload_id,
                    reasons=(
                        waiting.StartsNow(node=allocated.allocation.node_key.label, gpus=str(queued.request.gpu or "")),
                    ),
                    at=now,
                    startable_now=True,
                    position=position,
                    queue_length=length,
                    expected_start_at=now,
                    confidence=Confidence.LIMITS,
                    sites=_with_start(site_choices(snapshot, done, queued), allocated.allocation.site),
                )
            missing = shortfalls(snapshot, done, queued)
            holders = _holders(snapshot, queued)
            ahead = jobs_ahead(snapshot, done.order, queued)
            choices = site_choices(snapshot, done, queued)
            promised = promised_site(done, queued, snapshot)
            candidates = candidates_beside(done, queued)
        expected = expected_start(snapshot, queued, now, None if promised is None else promised[1])
        instead = smaller_request(snapshot, queued, now, candidates)
    request = queued.request
    same_else = instead is not None and replace(instead, gpu=request.gpu) == request
    return Explanation(
        workload_id=queued.workload_id,
        reasons=missing,
        at=now,
        position=position,
        is_queued=is_queued,
        site=_site_of(snapshot, queued, is_queued, None if promised is None else promised[0]),
        sites=choices,
        queue_length=length,
        jobs_ahead=ahead,
        holders=holders,
        fits_now=None if instead is None else str(instead.gpu if same_else else instead),
        fits_now_gpus=instead.gpu.text if instead is not None and instead.gpu and same_else else None,
        fits_now_request=instead,
        expected_start_at=expected.at,
        earliest_start_at=expected.earliest,
        latest_start_at=expected.latest,
        confidence=expected.confidence,
        basis=expected.basis if expected.at is not None else _no_basis(snapshot, queued, holders, expected.basis),
    )


def why_waiting(snapshot: Snapshot, outcome: Plan, queued: QueuedRequest, position: int) -> Reason:
    """The first shortfall, cached in the plan. Does not estimate a start."""
    last = next(reversed(outcome.promises), None)
    beyond = last is None or position - 1 > outcome.order.place(snapshot.queue.slot(last))
    sort = (
        queued.request,
        queued.time_limit_s,
        queued.tenant,
        (queued.owner, queued.environment) if snapshot.rules.tenants else "",
        queued.gang,
    )
    key = (*sort, None if beyond else position)  # among requests with a promise, the reason depends on the position
    reasons = outcome.reasons.get(key)
    if reasons is None:
        with snapshot.trial():
            for workload_id, allocated in outcome.started.items():
                if workload_id in snapshot.queue:
                    snapshot.start(allocated)
            reasons = outcome.reasons[key] = shortfalls(snapshot, outcome, queued)
    return reasons[0] if reasons else waiting.InQueue()


def ever_fits(grid: Grid, request: Request) -> Reason | None:
    """Why no node could run the request, even when empty; None if some node could."""
    at_sites = grid.at_sites(grid.shape(request), np.arange(len(grid.nodes)))
    known = at_sites & np.array([node.may_return for node in grid.nodes], np.bool_)
    if not known.any():
        return None  # no node has reported yet, or none can be reached: let it wait
    if grid.could_fit(grid.shape(request), np.flatnonzero(known)).any():
        return None
    nodes = [replace(grid.nodes[number], state=NodeState.READY) for number in np.flatnonzero(known).tolist()]
    return _never_fits_reason(nodes, request)


def _never_fits_reason(nodes: Sequence[Node], request: Request) -> Reason:
    empty = Grid(nodes)
    shape, gpu = empty.shape(request), request.gpu
    if gpu is not None:
        devices = [[device for _, device in matching(empty, shape, number)] for number in range(len(nodes))]
        if not any(devices):
            models = sorted({device.model for node in nodes for device in node.report.devices if not device.faults})
            if not models:
                return refusals.NoGpus()
            return refusals.GpuModelNotFound(model=gpu.model or "", models=tuple(models))
        if gpu.whole:
            most = max(len(usable) for usable in devices)
            if gpu.whole > most:
                return refusals.TooManyGpus(requested=gpu.whole, most=most)
        largest = max(device.memory_mib for usable in devices for device in usable)
        if gpu.vram_mib > largest:
            return refusals.TooMuchGpuMemory(requested_mib=gpu.vram_mib, max_mib=largest)
    usable = (refusal(empty, shape, number) for number in range(min(MAX_SHORTFALLS, len(nodes))))
    return refusals.RequestTooLarge(
        request=str(request), shortfalls=tuple(device for device in usable if device is not None)
    )


def _holders(snapshot: Snapshot, queued: QueuedRequest) -> tuple[Holder, ...]:
    """The workloads on devices (or nodes) that the request could use, the largest first."""
    grid, allocations = snapshot.grid, snapshot.allocations
    shape, slots = grid.shape(queued.request), np.flatnonzero(allocations.node >= 0)
    slots = slots[(grid.schedulable(shape, allocations.node[slots]) & grid.at_sites(shape, allocations.node[slots]))]
    if queued.request.gpu is None:
        amounts = allocations.rows[slots, 1]
    else:
        devices = usable(grid, shape, allocations.node[slots])
        amounts = np.where(devices, allocations.rows[slots, 2 : 2 + devices.shape[1]], 0).sum(axis=1)
    largest: list[tuple[int, AllocatedRequest]] = []
    for index in np.argsort(-amounts, kind="stable").tolist():
        request, amount = allocations.allocated[slots[index]], int(amounts[index])
        if not amount or (len(largest) >= MAX_HOLDERS and amount < largest[-1][0]):
            break
        if request is not None and request.workload_id in snapshot.allocated:
            largest.append((amount, request))
    largest.sort(key=lambda pair: (-pair[0], pair[1].workload_id))
    holders = []
    for amount, request in largest[:MAX_HOLDERS]:
        if queued.request.gpu is not None:
            holds = waiting.Resources(gpu_memory_mib=amount)
        else:
            holds = waiting.Resources(
                cpus_milli=request.allocation.cpus_milli, memory_mib=request.allocation.memory_mib
            )
        holders.append(
            Holder(
                request.workload_id,
                request.name,
                request.owner,
                request.kind,
                request.allocation.node_key.label,
                holds,
                request.ends_at,
                request.tenant,
            )
        )
    return tuple(holders)


def _no_basis(snapshot: Snapshot, queued: QueuedRequest, holders: Sequence[Holder], basis: Reason) -> Reason:
    grid = snapshot.grid
    if not grid.fits_empty(grid.shape(queued.request), np.arange(len(grid.nodes))).any():
        return waiting.NoNodeLargeEnough()
    for holder in holders:
        if holder.ends_at is None:
            if holder.tenant != queued.tenant:
                return waiting.NoTimeLimitAhead()
            return waiting.NoTimeLimitAhead(kind=holder.kind, owner=holder.owner)
    return basis


def _with_start(choices: Sequence[SiteChoice], site: str) -> tuple[SiteChoice, ...]:
    """The choices with `site` as the one that has room: the trial has started the request there."""
    return tuple(
        replace(one, reason=waiting.SiteHasRoom(), free_at=None) if one.site == site else one for one in choices
    )


def _site_of(snapshot: Snapshot, queued: QueuedRequest, is_queued: bool, promised: str | None) -> str | None:
    """The site in whose queue the request is shown; None with a single site."""
    if len(snapshot.sites.names) < 2:
        return None
    could = snapshot.grid.fits_empty(snapshot.grid.shape(queued.request), np.arange(len(snapshot.grid.nodes)))
    workload_id = queued.workload_id if is_queued else None
    return snapshot.sites.queue_site(workload_id, could, queued.gang_size, promised)


MAX_NAMED = 3
_REASONS = (Precedence.PRIORITY, Precedence.FAIR_SHARE, Precedence.OLDER, Precedence.OWN)


def jobs_ahead(snapshot: Snapshot, order: QueueOrder, queued: QueuedRequest) -> tuple[JobsAhead, ...]:
    """The requests ahead, grouped by reason; for each reason the number, and the nearest."""
    place = order.place(snapshot.queue.slot(queued.workload_id))
    slots = order.slots[:place]
    if not len(slots):
        return ()
    priority, submitted, keys = snapshot.ranks(order.now)
    mine = order.slots[place]
    by_age = snapshot.rules.age_credit * (submitted[mine] - submitted[slots])
    own = order.account_of[slots] == order.account_of[mine]
    higher = (priority[slots] > priority[mine]) & ~own
    fair = (keys[mine] - keys[slots] > 2 * by_age) & ~own & ~higher
    groups = []
    for precedence, which in zip(_REASONS, (higher, fair, ~(own | higher | fair), own), strict=True):
        some = np.flatnonzero(which)
        if len(some):
            nearest = [snapshot.queue.queued_requests[slot] for slot in slots[some[: -MAX_NAMED - 1 : -1]].tolist()]
            named = tuple(Ahead(one.kind, one.owner, one.tenant) for one in nearest if one is not None)
            groups.append(JobsAhead(precedence, len(some), named))
    return tuple(groups)
