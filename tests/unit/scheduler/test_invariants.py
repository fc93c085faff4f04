"""Invariants of simulated clusters, and proof that the tests detect violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, NOW, Scene, by_age, scenes
from tests.unit.scheduler.life import LONGEST_S, RULES, Life, LifeOptions

from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Reservation
from commonage.scheduler import plan as plan_module
from commonage.scheduler.backfill.backfill import Backfill
from commonage.scheduler.backfill.claims import AvailabilityProfiles, CapacityClaims
from commonage.scheduler.backfill.reservations import ReservedCapacity, feasible
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.plan import SchedulingPass, plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

SEEDS = st.integers(0, 2**32)
SLOWLY = settings(max_examples=15, deadline=None)


def live(seed: int, options: LifeOptions | None = None, steps: int = 25) -> Life:
    """A life with all checks after each pass, until everybody who could start has."""
    life = Life(seed, options)
    for _ in range(steps):
        life.step()
    for node in list(life.nodes.values()):
        life.put(factories.node(node.name, node.report.devices, cpus_milli=node.report.cpus_milli))
    for _ in range(20 * len(life.asked)):
        if not life.allocated and not life.plan().started:
            break
        life.step(arrivals=False)
    for queued in life.waiting.values():
        grid = life.snapshot.grid
        fit = grid.fits_empty(grid.shape(queued.request), np.arange(len(grid.nodes)))
        whole = len(life.snapshot.queue.gang(queued.gang)) == queued.gang_size if queued.gang else True
        assert not whole or fit.sum() < queued.gang_size, "it could run, and nothing is in its way"
    return life


@SLOWLY
@given(SEEDS)
def test_no_overcommit_no_starvation_and_whole_gangs(seed: int) -> None:
    live(seed)


@SLOWLY
@given(SEEDS, st.sampled_from(["expected-waste", "spread"]))
def test_invariants_hold_for_other_policies_with_time_limits(seed: int, policy: str) -> None:
    live(seed, LifeOptions(replace(RULES, policy=policy), endless=False), 15)


def first_start(seed: int, options: LifeOptions) -> float:
    """When one starts that needs the whole node, in a stream of small ones that never ends."""
    life = Life(seed, options)
    life.nodes = {"n": factories.node("n", 4, cpus_milli=64_000)}
    life.snapshot = Snapshot(list(life.nodes.values()), options.rules)
    small = {"request": Request(1000, GIB, parse_gpus("0.5")), "priority": 0, "owner": "ann", "tenant": "lab"}
    life.enqueue(8, **small)
    life.plan()
    (large,) = life.enqueue(**{**small, "request": Request(1000, GIB, parse_gpus("4"))})
    while large.workload_id in life.waiting and life.now < NOW + 1000:
        life.enqueue(4, **small)
        life.step(arrivals=False)
    return life.now - NOW


def large_starts(seed: int, endless: bool = True) -> None:
    options = LifeOptions(replace(RULES, entry_penalty_s=0.0, age_credit=1.0), endless, gangs=False, losses=False)
    assert first_start(seed, options) <= RULES.head_of_queue_timeout_s + 2 * LONGEST_S + 20


@SLOWLY
@given(SEEDS, st.booleans())
def test_large_request_does_not_starve(seed: int, endless: bool) -> None:
    large_starts(seed, endless)


@SLOWLY
@given(SEEDS)
def test_reservation_is_honoured(seed: int) -> None:
    honoured(seed)


def honoured(seed: int) -> None:
    """A class of a tenant that comes when its window begins, all at once, into a cluster that was busy until then."""
    life = Life(seed, LifeOptions(losses=False, preemptible=False, gangs=False))
    for _ in range(10):
        life.step()
    request = Request(500, GIB, parse_gpus("0.25"))
    wanted = Reservation("r", "class", life.now + 70, life.now + 100, request, count=life.random.randint(1, 6))
    if feasible(life.snapshot.grid, life.snapshot.allocations, (), wanted, life.now) is not None:
        return
    life.snapshot.set_rules(replace(RULES, reservations=(wanted,)))
    life.check = lambda _outcome: None  # type: ignore[method-assign]  # places stay where they were chosen first
    while life.now < wanted.starts_at:
        life.enqueue(2)
        life.step()
    life.now = max(life.now, wanted.starts_at)
    fields = {"tenant": "class", "request": request, "priority": 0, "time_limit_s": 10}
    members = [life.enqueue(owner=f"student-{number}", **fields)[0] for number in range(wanted.count)]
    started = life.plan().started
    assert all(member.workload_id in started for member in members)


def earliest(snapshot: Snapshot, request: Request) -> float:
    """When a request fits if time limits end the running workloads, and no other request arrives. Where it fits now and
    waits all the same, that is the next time that something ends there.
    """
    by_node = snapshot.profiles.earliest(snapshot.grid.shape(request))
    by_node = np.where(by_node < NOW, snapshot.profiles.first_ends(), by_node)
    return float(np.maximum(by_node, NOW).min(initial=np.inf))


@SLOWLY
@given(scenes(users=2))
def test_backfill_does_not_delay_requests_without_a_promise(scene: Scene) -> None:
    delays_nobody(scene)


def delays_nobody(scene: Scene) -> None:
    """Of each that waits: what starts behind it leaves its earliest start as it was, wherever that is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "MAX_PROMISES", 0)
        snapshot = scene.snapshot()
        outcome = plan(snapshot, NOW)
        order = [snapshot.queue.queued_requests[slot] for slot in outcome.order.slots]
        with snapshot.trial():
            before = {}
            for queued in order:
                assert queued is not None
                if queued.workload_id in outcome.started:
                    snapshot.start(outcome.started[queued.workload_id])
                else:
                    before[queued.workload_id] = (queued.request, earliest(snapshot, queued.request))
            for request, at in before.values():
                assert earliest(snapshot, request) <= at


@SLOWLY
@given(scenes(6), SEEDS)
def test_considered_request_that_starts_now_starts_when_submitted(scene: Scene, seed: int) -> None:
    (queued,) = Life(seed).enqueue()
    queued = replace(queued, workload_id="z-new")
    explanation = scene.explain(replace(queued, workload_id=""))
    real = replace(scene, queue=by_age([*scene.queue, queued])).plan()
    assert explanation.startable_now == (queued.workload_id in real.started)


def test_fit_within_a_pass_is_that_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, compared = SchedulingPass._fit, []

    def fit(self: SchedulingPass, queued: Any, request_class: int, shape: Any) -> Any:
        found = kept(self, queued, request_class, shape)
        grid = self.snapshot.grid
        within = self._within_quota(queued, shape)
        uncached = grid.fits(shape, np.arange(len(grid.nodes)))
        assert (found == (uncached if within is None else uncached & within)).all()
        compared.append(bool(self.started))
        return found

    monkeypatch.setattr(SchedulingPass, "_fit", fit)
    for seed in range(5):
        live(seed)
    assert any(compared)


# --- do they notice? --------------------------------------------------------------------------------------------------


def _no_backfill_rules(_self: Backfill, _queued: object, _shape: object, fit: Any) -> Any:
    return fit


def _alone(self: SchedulingPass, index: int) -> Any:
    return [replace(self.snapshot.queue.queued_requests[self.order.slots[index]], gang_size=1)]  # type: ignore[type-var]


@contextmanager
def _never_undone(_self: Snapshot) -> Iterator[None]:
    yield


def _known_streams(seed: int) -> None:
    large_starts(seed, endless=False)


def _scenes(seed: int) -> None:
    life = Life(seed, LifeOptions(endless=False, gangs=False))
    for _ in range(12):
        life.enqueue()
    life.plan()
    for _ in range(6):
        life.enqueue()
    delays_nobody(replace(life.scene(), now=NOW))


BROKEN = {
    "allocations take nothing": (Grid, "_apply", lambda *_: None, live),
    "promises claim nothing": (CapacityClaims, "promise", lambda *_: None, _known_streams),
    "backfill lets everything start": (Backfill, "startable_nodes", _no_backfill_rules, _scenes),
    "no node is reserved for the head": (Backfill, "reserve_node", lambda *_: None, large_starts),
    "members of gangs start alone": (SchedulingPass, "members_at", _alone, live),
    "a trial is not undone": (Snapshot, "trial", _never_undone, live),
    "availability profiles are stale": (AvailabilityProfiles, "_refresh", lambda _self: None, live),
    "reservations are ignored": (ReservedCapacity, "update", lambda *_: None, honoured),
}


@pytest.mark.parametrize("what", BROKEN)
def test_invariants_detect_a_broken_scheduler(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken, play = BROKEN[what]
    monkeypatch.setattr(where, name, broken)
    assert any(_fails(play, seed) for seed in range(60)), "60 runs, and none noticed"


def _fails(play: Callable[[int], object], seed: int) -> bool:
    try:
        play(seed)
    except (AssertionError, KeyError, ValueError, IndexError):
        return True
    return False
