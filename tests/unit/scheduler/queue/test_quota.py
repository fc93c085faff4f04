"""Quotas: what is a tenant's own, what it borrows, what comes back, and that nobody ever holds more than there is."""

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
from commonage.scheduler.model.queued_requests import Held
from commonage.scheduler.queue.quota import QuotaAccounts, QuotaDecision, amounts_of
from commonage.testing import factories

NUMBERS = count()


def gpus(n: float | None) -> Bounds:
    return Bounds(gpu_milli=None if n is None else round(n * 1000))


def tenant(name: str, nominal: int | None, **bounds: int | None) -> Tenant:
    return Tenant(name, quota=Quota(gpus(nominal), **{key: gpus(n) for key, n in bounds.items()}))


def held(name: str, n: float, owner: str = "ann") -> Held:
    share = replace(factories.share(), compute_milli=round(n * 1000), memory_mib=round(n * 1024))
    return Held(
        Allocation(f"a{next(NUMBERS)}", "node-1", 1000, 1024, (share,), 0.0), "w", "", owner, "job", tenant=name
    )


def amounts(n: float) -> Amounts:
    return Amounts.of(held("", n).allocation)


LAB = (tenant("bio", 8, borrowing=2), tenant("physics", 4, lending=3))


def test_within_its_own_a_tenant_starts_and_beyond_it_borrows() -> None:
    quotas = QuotaAccounts(Rules(LAB), [held("bio", 7)])
    assert quotas.standing("bio", "ann", amounts(1)) is QuotaDecision.OWN
    assert quotas.standing("bio", "ann", amounts(3)) is QuotaDecision.BORROWED
    assert quotas.refusal("bio", "ann", amounts(3)) is None


def test_it_borrows_no_more_than_it_may() -> None:
    quotas = QuotaAccounts(Rules(LAB), [held("bio", 8)])
    assert quotas.standing("bio", "ann", amounts(3)) is QuotaDecision.FULL
    assert quotas.refusal("bio", "ann", amounts(3)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=2000, unused=3000
    )


def test_it_borrows_no_more_than_others_lend() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8), LAB[1])), [held("bio", 8), held("physics", 2)])
    assert quotas.standing("bio", "ann", amounts(2)) is QuotaDecision.BORROWED
    assert quotas.refusal("bio", "ann", amounts(3)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=None, unused=2000
    )


def test_one_that_may_borrow_none_hears_just_that() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8, borrowing=0), LAB[1])), [held("bio", 8)])
    assert quotas.refusal("bio", "ann", amounts(1)) == waiting.QuotaExceeded(
        tenant="bio", resource=Resource.GPU, used=8000, quota=8000, borrowing=0, unused=3000
    )


def test_what_was_lent_comes_back_by_reclaim_and_what_is_not_lent_is_there_at_once() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8), LAB[1])), [held("bio", 11)])
    assert quotas.borrows("bio")
    assert quotas.standing("physics", "bob", amounts(1)) is QuotaDecision.OWN
    assert quotas.standing("physics", "bob", amounts(2)) is QuotaDecision.LENT
    assert quotas.refusal("physics", "bob", amounts(2)) == waiting.QuotaLent(
        tenant="physics", resource=Resource.GPU, used=0, quota=4000, left=0
    )


def test_a_member_is_bounded_within_its_tenant() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", 8, per_user=2),)), [held("bio", 2, "ann")])
    assert quotas.standing("bio", "bob", amounts(2)) is QuotaDecision.OWN
    assert quotas.refusal("bio", "ann", amounts(1)) == waiting.UserQuotaExceeded(
        tenant="bio", user="ann", resource=Resource.GPU, used=2000, limit=2000
    )


def test_a_resource_without_a_nominal_bound_is_not_counted() -> None:
    quotas = QuotaAccounts(Rules((tenant("bio", None, borrowing=0), tenant("physics", 1))), [held("bio", 50)])
    assert quotas.standing("bio", "ann", amounts(50)) is QuotaDecision.OWN
    assert quotas.standing("nobody declared", "ann", amounts(50)) is QuotaDecision.OWN
    assert quotas.standing("physics", "ann", amounts(1)) is QuotaDecision.OWN


def test_what_can_never_be_held_is_refused_before_it_waits() -> None:
    quotas = QuotaAccounts(Rules((*LAB, tenant("art", 0, per_user=2))))
    assert quotas.never("bio", amounts(10)) is None
    assert quotas.never("bio", amounts(11)) == refusals.QuotaTooSmall(
        tenant="bio", resource=Resource.GPU, limit=10_000, borrowed=2000, requested=11_000
    )
    assert quotas.never("art", amounts(3)) == refusals.UserQuotaTooSmall(
        tenant="art", resource=Resource.GPU, limit=2000, requested=3000
    )


def test_a_share_of_vram_goes_where_it_keeps_within_the_quota() -> None:
    small, large = factories.device(uuid="s", memory_mib=16 * 1024), factories.device(uuid="l", memory_mib=80 * 1024)
    grid = Grid([factories.node("small", [small]), factories.node("large", [large])])
    shape = grid.shape(factories.request(gpus="8GiB"))
    assert amounts_of(shape).gpu_milli == 100
    quotas = QuotaAccounts(Rules((Tenant("bio", quota=Quota(gpus(0.2), gpus(0))),)))
    allowed = quotas.mask(grid, shape, "bio", "ann")
    assert allowed is not None
    assert allowed.tolist() == [False, True]
    assert quotas.mask(grid, shape, "other", "ann") is None


def test_the_least_of_a_shape_that_fits_nowhere_is_without_devices() -> None:
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


def in_all(name: str, running: list[Held]) -> int:
    return sum(Amounts.of(one.allocation).gpu_milli for one in running if one.tenant == name)


@given(TENANTS, MOVES, st.data())
def test_all_together_never_hold_more_than_is_theirs(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]], data: st.DataObject
) -> None:
    quotas = QuotaAccounts(Rules(tenants))
    running: list[Held] = []
    for number, owner, n in moves:
        ends = data.draw(st.booleans())
        if running and ends:
            quotas.give(running.pop(data.draw(st.integers(0, len(running) - 1))))
        name = tenants[number % len(tenants)].name
        if quotas.standing(name, owner, amounts(n)).starts:
            running.append(held(name, n, owner))
            quotas.take(running[-1])
        used = {
            one.name: sum(Amounts.of(h.allocation).gpu_milli for h in running if h.tenant == one.name)
            for one in tenants
        }
        assert sum(used.values()) <= sum(one.quota.nominal.gpu_milli or 0 for one in tenants)
        for one in tenants:
            borrowed = used[one.name] - (one.quota.nominal.gpu_milli or 0)
            limit = one.quota.borrowing.gpu_milli
            assert limit is None or borrowed <= limit
    assert quotas.pool == QuotaAccounts(Rules(tenants), running).pool


@given(TENANTS, MOVES)
def test_within_its_own_a_tenant_is_refused_only_while_others_borrow(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]]
) -> None:
    tenants = tuple(replace(one, quota=replace(one.quota, per_user=Bounds())) for one in tenants)
    quotas = QuotaAccounts(Rules(tenants))
    for number, owner, n in moves:
        name = tenants[number % len(tenants)].name
        if quotas.standing(name, owner, amounts(n)).starts:
            quotas.take(held(name, n, owner))
    for one in tenants:
        used = quotas._of(one.name).used[2]
        own = (one.quota.nominal.gpu_milli or 0) - used
        if own > 0:
            standing = quotas.standing(one.name, "a", amounts(own / 1000))
            others = any(quotas.borrows(other.name) for other in tenants if other is not one)
            assert standing is QuotaDecision.OWN or (standing is QuotaDecision.LENT and others)


@given(TENANTS, MOVES)
def test_what_is_refused_has_words_and_what_starts_has_none(
    tenants: tuple[Tenant, ...], moves: list[tuple[int, str, float]]
) -> None:
    quotas = QuotaAccounts(Rules(tenants))
    for number, owner, n in moves:
        name = tenants[number % len(tenants)].name
        starts = quotas.standing(name, owner, amounts(n)).starts
        assert starts == (quotas.refusal(name, owner, amounts(n)) is None)
        if quotas.never(name, amounts(n)):
            assert not starts
        if starts:
            quotas.take(held(name, n, owner))
