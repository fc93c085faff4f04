"""Quotas: nominal quota, borrowing, lending and reclaim."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import Allocation
from commonage.domain.reasons import refusals, waiting
from commonage.domain.reasons.waiting import Resource
from commonage.domain.requests import GpuRequest
from commonage.domain.tenants import Amounts, Bounds, Quota, Rules, Tenant
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.queue.quota import QuotaAccounts, QuotaDecision, amounts_of
from commonage.testing import factories

NUMBERS = count()


def gpus(n: float | None) -> Bounds:
    return Bounds(gpu_milli=None if n is None else round(n * 1000))


def tenant(name: str, nominal: int | None, **bounds: int | None) -> Tenant:
    return Tenant(name, quota=Quota(gpus(nominal), **{key: gpus(n) for key, n in bounds.items()}))


def allocated(name: str, n: float, owner: str = "ann") -> AllocatedRequest:
    share = replace(factories.share(), compute_milli=round(n * 1000), memory_mib=round(n * 1024))
    return AllocatedRequest(
        Allocation(f"a{next(NUMBERS)}", factories.SITE, "node-1", 1000, 1024, (share,), 0.0),
        "w",
        "",
        owner,
        "job",
        tenant=name,
    )


def amounts(n: float) -> Amounts:
    return Amounts.of(allocated("", n).allocation)


def asking(name: str) -> QueuedRequest:
    return QueuedRequest("w", factories.request(), 0, 0.0, owner="ann", tenant=name)


LAB = (tenant("bio", 8, borrowing=2), tenant("physics", 4, lending=3))


def test_tenant_uses_its_nominal_quota_then_borrows() -> None:
    quotas = QuotaAccounts(Rules(LAB), [allocated("bio", 7)])
    assert quotas.decide("bio", "ann", amounts(1)) is QuotaDecision.OWN
    assert quotas.decide("bio", "ann", amounts(3)) is QuotaDecision.BORROWED
    assert quotas.refusal("bio", "ann", amounts(3)) is None


def test_borrowing_is_limited_by_the_borrowing_limit() -> None:
    quotas = QuotaAccounts(Rules(LAB), [allocated("bio", 8)])
    assert quotas.decide("bio", "ann", amounts(3)) is QuotaDecision.EXHAUSTED
    assert quotas.refusal("bio", "ann", amounts(3)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=2000, unused=3000
    )


def test_borrowing_is_limited_by_the_lending_of_others() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8), LAB[1])), [allocated("bio", 8), allocated("physics", 2)])
    assert quotas.decide("bio", "ann", amounts(2)) is QuotaDecision.BORROWED
    assert quotas.refusal("bio", "ann", amounts(3)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=None, unused=2000
    )


def test_reason_says_if_a_tenant_may_not_borrow() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8, borrowing=0), LAB[1])), [allocated("bio", 8)])
    assert quotas.refusal("bio", "ann", amounts(1)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=0, unused=3000
    )


def test_lent_quota_returns_by_reclaim_and_guaranteed_quota_at_once() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8), LAB[1])), [allocated("bio", 11)])
    assert quotas.borrows("bio")
    assert quotas.decide("physics", "bob", amounts(1)) is QuotaDecision.OWN
    assert quotas.decide("physics", "bob", amounts(2)) is QuotaDecision.RECLAIMABLE
    assert quotas.refusal("physics", "bob", amounts(2)) == waiting.QuotaLent(
        tenant="physics", resource=Resource.GPU, used=0, quota=4000, left=0
    )


def test_user_limit_applies_within_the_tenant() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8, per_user=2),)), [allocated("bio", 2, "ann")])
    assert quotas.decide("bio", "bob", amounts(2)) is QuotaDecision.OWN
    assert quotas.refusal("bio", "ann", amounts(1)) == waiting.UserQuotaExceeded(
        tenant="bio", user="ann", resource=Resource.GPU, used=2000, limit=2000
    )


def test_resource_without_nominal_quota_is_not_counted() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", None, borrowing=0), tenant("physics", 1))), [allocated("bio", 50)])
    assert quotas.decide("bio", "ann", amounts(50)) is QuotaDecision.OWN
    assert quotas.decide("nobody declared", "ann", amounts(50)) is QuotaDecision.OWN
    assert quotas.decide("physics", "ann", amounts(1)) is QuotaDecision.OWN


def test_request_beyond_all_quotas_is_refused_at_submit() -> None:
    quotas = QuotaAccounts(Rules((*LAB, tenant("art", 0, per_user=2))))
    assert quotas.unsatisfiable_reason("bio", amounts(10)) is None
    assert quotas.unsatisfiable_reason("bio", amounts(11)) == refusals.QuotaTooSmall(
        tenant="bio", resource=Resource.GPU, limit=10_000, borrowed=2000, requested=11_000
    )
    assert quotas.unsatisfiable_reason("art", amounts(3)) == refusals.UserQuotaTooSmall(
        tenant="art", resource=Resource.GPU, limit=2000, requested=3000
    )


def test_vram_share_goes_to_nodes_where_it_stays_within_quota() -> None:
    small, large = factories.device(uuid="s", memory_mib=16 * 1024), factories.device(uuid="l", memory_mib=80 * 1024)
    grid = Grid([factories.node("small", [small]), factories.node("large", [large])])
    shape = grid.shape(factories.request(gpus="8GiB"))
    assert amounts_of(shape).gpu_milli == 100
    quotas = QuotaAccounts(Rules((Tenant("bio", quota=Quota(gpus(0.2), gpus(0))),)))
    allowed = quotas.nodes_within_quota(grid, asking("bio"), shape)
    assert allowed is not None
    assert allowed.tolist() == [False, True]
    assert quotas.nodes_within_quota(grid, asking("other"), shape) is None


def test_least_amounts_of_an_unmatched_shape_have_no_devices() -> None:
    shape = Grid([factories.node()]).shape(replace(factories.request(), gpu=GpuRequest(whole=1)))
    assert amounts_of(shape) == Amounts(1000, 1024)


BOUND = st.none() | st.integers(0, 6)
TENANTS = st.lists(st.tuples(st.integers(0, 8), BOUND, BOUND, BOUND), min_size=1, max_size=4).map(
    lambda rows: tuple(
        tenant(f"t{number}", own, borrowing=more, lending=lent, per_user=each)
        for number, (own, more, lent, each) in enumerate(rows)
    )
)
MOVES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from([0.5, 1, 2, 5])), max_size=25)


def in_all(name: str, running: list[AllocatedRequest]) -> int:
    return sum(Amounts.of(held.allocation).gpu_milli for held in running if held.tenant == name)


@given(TENANTS, MOVES, st.data())
def test_tenants_together_never_exceed_their_nominal_quotas(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]], data: st.DataObject
) -> None:
    quotas = QuotaAccounts(Rules(tenants))
    running: list[AllocatedRequest] = []
    for number, owner, n in moves:
        ends = data.draw(st.booleans())
        if running and ends:
            quotas.give(running.pop(data.draw(st.integers(0, len(running) - 1))))
        name = tenants[number % len(tenants)].name
        if quotas.decide(name, owner, amounts(n)).starts:
            running.append(allocated(name, n, owner))
            quotas.take(running[-1])
        used = {
            lab.name: sum(Amounts.of(h.allocation).gpu_milli for h in running if h.tenant == lab.name)
            for lab in tenants
        }
        assert sum(used.values()) <= sum(lab.quota.nominal.gpu_milli or 0 for lab in tenants)
        for lab in tenants:
            borrowed = used[lab.name] - (lab.quota.nominal.gpu_milli or 0)
            limit = lab.quota.borrowing.gpu_milli
            assert limit is None or borrowed <= limit
    assert quotas.pool == QuotaAccounts(Rules(tenants), running).pool


@given(TENANTS, MOVES)
def test_tenant_within_nominal_quota_waits_only_while_others_borrow(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]]
) -> None:
    tenants = tuple(replace(lab, quota=replace(lab.quota, per_user=Bounds())) for lab in tenants)
    quotas = QuotaAccounts(Rules(tenants))
    for number, owner, n in moves:
        name = tenants[number % len(tenants)].name
        if quotas.decide(name, owner, amounts(n)).starts:
            quotas.take(allocated(name, n, owner))
    for lab in tenants:
        used = quotas._account_of(lab.name).used[2]
        own = (lab.quota.nominal.gpu_milli or 0) - used
        if own > 0:
            decision = quotas.decide(lab.name, "a", amounts(own / 1000))
            others = any(quotas.borrows(other.name) for other in tenants if other is not lab)
            assert decision is QuotaDecision.OWN or (decision is QuotaDecision.RECLAIMABLE and others)


@given(TENANTS, MOVES)
def test_refusal_has_a_reason_exactly_if_the_request_waits(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]]
) -> None:
    quotas = QuotaAccounts(Rules(tenants))
    for number, owner, n in moves:
        name = tenants[number % len(tenants)].name
        starts = quotas.decide(name, owner, amounts(n)).starts
        assert starts == (quotas.refusal(name, owner, amounts(n)) is None)
        if quotas.unsatisfiable_reason(name, amounts(n)):
            assert not starts
        if starts:
            quotas.take(allocated(name, n, owner))
