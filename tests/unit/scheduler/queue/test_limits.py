"""Fixed limits of quotas: running workloads, environments, device models, GPU-hours of a month."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import GIB, Scene
from tests.unit.scheduler.life import RULES, Life, LifeOptions

from commonage.domain.months import month_of
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.tenants import Amounts, Bounds, Quota, Rules, Tenant
from commonage.domain.usage import GpuTime
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.explain.shortfalls import over_quota
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.queue.gpu_time import GpuTimes
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
NODES = (
    factories.node("n1", [factories.device(i, uuid=f"a{i}", model="A100") for i in range(4)], cpus_milli=64_000),
    factories.node("n2", [factories.device(i, uuid=f"t{i}", model="T4") for i in range(4)], cpus_milli=64_000),
)


def queued(name: str, gpus: str | None = None, **fields: Any) -> QueuedRequest:
    base = QueuedRequest(
        name, factories.request(gpus=gpus), 0, NOW - 60, owner="ann", tenant="lab", environment="torch"
    )
    return replace(base, **fields)


def snapshot(quota: Quota, *requests: QueuedRequest, **rules: Any) -> Snapshot:
    made = Snapshot(NODES, Rules((Tenant("lab", quota=quota),), policy="best-fit", **rules))
    for request in requests:
        made.enqueue(request)
    return made


def started(made: Snapshot, now: float = NOW) -> list[str]:
    return sorted(plan(made, now).started)


def run(made: Snapshot, now: float = NOW) -> list[str]:
    """Carry out the plan."""
    done = plan(made, now).started
    for name, allocated in done.items():
        made.dequeue(name)
        made.allocate(allocated)
    return sorted(done)


def why(made: Snapshot, request: QueuedRequest, now: float = NOW) -> Reason | None:
    made.refresh(now)
    return over_quota(made, request, made.grid.shape(request.request))


def test_running_limit_lets_the_next_start_when_one_ends() -> None:
    made = snapshot(Quota(Bounds(running=2)), *(queued(f"w{n}") for n in range(4)))
    assert run(made) == ["w0", "w1"]
    assert why(made, queued("w2")) == waiting.QuotaLimitReached(
        tenant="lab", scope=QuotaScope.TENANT, name="lab", resource=Resource.RUNNING, used=2, limit=2
    )
    made.release("w0", NOW + 1)
    assert run(made, NOW + 1) == ["w2"]


def test_end_before_the_begin_takes_no_usage_off() -> None:
    made = snapshot(Quota(), queued("w0", "1"))
    run(made)
    made.release("w0", NOW - 1e5)
    assert made.gpu_times.used_s("lab", QuotaScope.TENANT, "lab", NOW) == 0.0
    made.gpu_times.load([GpuTime("lab", "ann", "torch", "A100", 1000.0)], NOW)
    assert made.gpu_times.used_s("lab", QuotaScope.TENANT, "lab", NOW) == pytest.approx(1.0)
    assert made.usage.debt("lab", "ann", NOW) >= 0.0


def test_user_limit_holds_only_that_user() -> None:
    made = snapshot(Quota(per_user=Bounds(running=1)), queued("w0"), queued("w1"), queued("w2", owner="bob"))
    assert run(made) == ["w0", "w2"]
    found = why(made, queued("w1"))
    assert isinstance(found, waiting.QuotaLimitReached)
    assert (found.scope, found.name) == (QuotaScope.USER, "ann")


def test_environment_limit_holds_only_that_environment() -> None:
    made = snapshot(
        Quota(per_environment=(("torch", Bounds(running=1)),)),
        queued("w0"),
        queued("w1"),
        queued("w2", environment="r"),
        queued("w3", environment="r"),
    )
    assert run(made) == ["w0", "w2", "w3"]
    found = why(made, queued("w1"))
    assert isinstance(found, waiting.QuotaLimitReached)
    assert (found.scope, found.name) == (QuotaScope.ENVIRONMENT, "torch")


def test_model_limit_sends_work_to_other_models() -> None:
    made = snapshot(Quota(per_model=(("a100", Bounds(gpu_milli=1000)),)), *(queued(f"w{n}", "1") for n in range(6)))
    assert len(run(made)) == 5
    models = Counter(made.allocated[name].allocation.shares[0].model for name in made.allocated)
    assert models == {"A100": 1, "T4": 4}
    assert made.quotas.used("lab", QuotaScope.MODEL, "a100")["gpu_milli"] == 1000


def test_model_limit_explains_a_request_for_that_model() -> None:
    made = snapshot(
        Quota(per_model=(("A100", Bounds(gpu_milli=1000)),)), queued("w0", "A100:1"), queued("w1", "A100:1")
    )
    assert run(made) == ["w0"]
    found = explain(made, queued("w1", "A100:1"), NOW).reasons
    assert found == (
        waiting.QuotaLimitReached(
            tenant="lab", scope=QuotaScope.MODEL, name="A100", resource=Resource.GPU, used=1000, limit=1000
        ),
    )


def test_work_that_waits_for_a_model_limit_keeps_no_free_gpu_from_others() -> None:
    quota = Quota(per_model=(("A100", Bounds(gpu_milli=0)),))
    made = snapshot(quota, *(queued(f"w{n}", "1") for n in range(6)))
    assert len(run(made)) == 4  # all T4
    made.enqueue(queued("x", "1", tenant="other", owner="bob", submitted_at=NOW))
    assert run(made) == ["x"]


def test_gang_counts_as_a_whole() -> None:
    members = [queued(f"g{n}", gang="g", gang_size=2) for n in range(2)]
    made = snapshot(Quota(Bounds(running=1)), *members)
    assert started(made) == []
    shape = made.grid.shape(members[0].request)
    assert made.quotas.never_reason(members[0], shape, 2) == refusals.QuotaLimitTooSmall(
        tenant="lab", scope=QuotaScope.TENANT, name="lab", resource=Resource.RUNNING, limit=1, requested=2
    )
    assert made.quotas.never_reason(members[0], shape, 1) is None


def test_spent_gpu_hours_hold_gpu_work_until_the_next_month() -> None:
    made = snapshot(Quota(Bounds(gpu_s_month=3600)), queued("w0", "1"), queued("w1", "1"), queued("w2"))
    made.load_gpu_time([GpuTime("lab", "ann", "torch", "A100", 3599_000.0)], NOW)
    assert run(made) == ["w0", "w1", "w2"]  # a second is left: what starts may run on
    made.release("w1", NOW + 1)
    made.enqueue(queued("w3", "1"))
    assert run(made, NOW + 2) == []
    found = explain(made, queued("w3", "1"), NOW + 2)
    assert found.reasons == (
        waiting.GpuHoursSpent(
            tenant="lab", scope=QuotaScope.TENANT, name="lab", used_s=3602, limit_s=3600, resets_at=DECEMBER
        ),
    )
    assert (found.expected_start_at, found.basis) == (DECEMBER, waiting.EstimateFromQuotaReset())
    assert made.quotas.limits.used("lab", QuotaScope.TENANT, "lab")["running"] == 2  # w0 and w2 run on
    assert run(made, DECEMBER) == ["w3"]


def test_spent_gpu_hours_of_one_model_leave_the_other() -> None:
    made = snapshot(Quota(per_model=(("T4", Bounds(gpu_s_month=10)),)), queued("w0", "T4:1"), queued("w1", "1"))
    made.load_gpu_time([GpuTime("lab", "ann", "torch", "T4", 10_000.0)], NOW)
    assert run(made) == ["w1"]
    assert made.allocated["w1"].allocation.shares[0].model == "A100"


def test_months_follow_the_time_zone() -> None:
    begins, ends = month_of(datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp(), "Europe/Berlin")
    assert begins == datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp()
    assert ends == datetime(2027, 1, 31, 23, tzinfo=UTC).timestamp()


# --- invariants -------------------------------------------------------------------------------------------------------

_SMALL = st.none() | st.integers(0, 3)
_HARD = st.builds(Bounds, running=_SMALL)
_MODEL = st.builds(
    lambda gpus, vram: Bounds(gpu_milli=None if gpus is None else gpus * 500, vram_mib=vram),
    _SMALL,
    st.none() | st.integers(0, 48 * GIB),
)
_ENVIRONMENT = st.builds(
    lambda running, gpus, cpus: Bounds(
        cpus_milli=cpus, gpu_milli=None if gpus is None else gpus * 500, running=running
    ),
    _SMALL,
    _SMALL,
    st.none() | st.integers(500, 8000),
)
_QUOTA = st.builds(
    Quota,
    nominal=_HARD,
    per_user=_HARD,
    per_environment=st.lists(
        st.tuples(st.sampled_from("ab"), _ENVIRONMENT), max_size=2, unique_by=lambda one: one[0]
    ).map(tuple),
    per_model=st.lists(
        st.tuples(st.sampled_from(["A30", "A100", "a"]), _MODEL), max_size=2, unique_by=lambda one: one[0]
    ).map(tuple),
)


def beyond(quota: Quota, held: Iterable[AllocatedRequest]) -> list[str]:
    """The bounds that allocations of one tenant exceed; computed without the code under test."""
    held = list(held)
    groups = [(quota.nominal, held)]
    groups += [(quota.per_user, [one for one in held if one.owner == owner]) for owner in {one.owner for one in held}]
    groups += [(bounds, [one for one in held if one.environment == name]) for name, bounds in quota.per_environment]
    found = []
    for bounds, several in groups:
        sums = [Amounts.of(one.allocation) for one in several]
        for name in ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib"):
            if getattr(bounds, name) is not None and sum(getattr(one, name) for one in sums) > getattr(bounds, name):
                found.append(name)
        if bounds.running is not None and len(several) > bounds.running:
            found.append("running")
    for name, bounds in quota.per_model:
        shares = [share for one in held for share in one.allocation.shares if name.lower() in share.model.lower()]
        if bounds.gpu_milli is not None and sum(share.compute_milli for share in shares) > bounds.gpu_milli:
            found.append(f"gpus of {name}")
        if bounds.vram_mib is not None and sum(share.memory_mib for share in shares) > bounds.vram_mib:
            found.append(f"vram of {name}")
    return found


@settings(max_examples=40, deadline=None)
@example(  # a gang is evicted whose members were allocated in another order than that of the slots
    1162165922,
    Quota(
        Bounds(running=0),
        per_user=Bounds(running=1),
        per_model=(("A100", Bounds(gpu_milli=0)), ("A30", Bounds(gpu_milli=0))),
    ),
    Quota(Bounds(running=3), per_environment=(("a", Bounds(running=3)),)),
)
@given(st.integers(0, 2**32), _QUOTA, _QUOTA)
def test_no_limit_is_ever_exceeded(seed: int, first: Quota, second: Quota) -> None:
    quotas = {"lab-0": first, "lab-1": second}
    rules = replace(RULES, tenants=tuple(Tenant(name, quota=quota) for name, quota in quotas.items()))
    life = Life(seed, LifeOptions(rules, losses=False))
    for _ in range(20):
        life.step()
        for name, quota in quotas.items():
            held = [one for one, _ in life.allocated.values() if one.tenant == name]
            assert beyond(quota, held) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(2, 8))
def test_freed_running_slot_is_used_at_once(limit: int, count: int) -> None:
    made = snapshot(Quota(Bounds(running=limit)), *(queued(f"w{n}") for n in range(count)))
    done: list[str] = []
    for step in range(count):
        run(made, NOW + step)
        assert len(made.allocated) == min(limit, count - len(done))
        ending = min(made.allocated)
        made.release(ending, NOW + step)
        done.append(ending)
    assert len(done) == count


_SPANS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]), st.sampled_from("ab"), st.sampled_from(["A100", "T4"]),
        st.integers(1, 2000), st.floats(0, 80 * 86400), st.none() | st.floats(0, 40 * 86400),
    ),
    max_size=12,
)  # fmt: skip


@given(_SPANS, st.floats(0, 90 * 86400), st.integers(0, 12))
def test_incremental_gpu_time_equals_the_sum_over_allocations(
    spans: list[tuple[str, str, str, int, float, float | None]], later: float, loaded: int
) -> None:
    start = NOW - 20 * 86400
    now = max([start + later, *(start + at + (length or 0.0) for *_, at, length in spans)])
    times = GpuTimes("Europe/Berlin")
    happenings = []
    for number, (owner, environment, model, milli, at, length) in enumerate(spans):
        share = replace(factories.share(), compute_milli=milli, model=model)
        allocation = Allocation(f"a{number}", factories.SITE, "n", 1000, 1024, (share,), start + at)
        happenings.append((start + at, 0, number, (owner, environment, allocation)))
        if length is not None:
            happenings.append((start + at + length, 1, number, (owner, environment, allocation)))
    for at, is_end, number, (owner, environment, allocation) in sorted(happenings, key=lambda one: one[:3]):
        if is_end:
            times.end(f"a{number}", at)
        else:
            times.begin("lab", owner, environment, allocation)
    begins, _ = month_of(now, "Europe/Berlin")

    def expected(**wanted: str) -> float:
        total = 0.0
        for owner, environment, model, milli, at, length in spans:
            if {"owner": owner, "environment": environment, "model": model}.items() >= wanted.items():
                end = now if length is None else start + at + length
                total += milli / 1000 * max(0.0, min(end, now) - max(start + at, begins))
        return total

    for scope, name, wanted in (
        (QuotaScope.TENANT, "lab", {}),
        (QuotaScope.USER, "ann", {"owner": "ann"}),
        (QuotaScope.ENVIRONMENT, "b", {"environment": "b"}),
        (QuotaScope.MODEL, "t4", {"model": "T4"}),
    ):
        assert times.used_s("lab", scope, name, now) == pytest.approx(expected(**wanted), abs=1e-3)


def test_pass_without_fixed_limits_asks_nothing_more() -> None:
    made = snapshot(Quota(Bounds(gpu_milli=8000)), queued("w0", "1"))
    assert started(made) == ["w0"]
    assert not made.quotas.limits.by_environment
    assert made.quotas.limits.exceeded(queued("w0"), made.grid.shape(queued("w0").request), Amounts(), 1) is None


def test_scene_and_limits_agree_on_the_wait_reason() -> None:
    scene = Scene(NOW, NODES, (), [queued("w0"), queued("w1")], Rules((Tenant("lab", quota=Quota(Bounds(running=1))),)))
    waits = scene.after(scene.plan()).queue
    assert [one.workload_id for one in waits] == ["w1"]
    after = scene.after(scene.plan())
    (reason,) = after.explain(waits[0]).reasons
    assert isinstance(reason, waiting.QuotaLimitReached)
    assert np.isfinite(after.now)
