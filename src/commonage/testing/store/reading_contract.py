"""Contract tests for reading a store: lists, pages, counts, events, usage. Part of `contract`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.tenants import Amounts
from commonage.domain.usage import Usage
from commonage.domain.workloads import Attempt, Kind, State, Workload
from commonage.ports.store import Batch, Filter, Store, Visible
from commonage.testing import factories as make

some_examples: Final = settings(
    max_examples=25,
    deadline=None,
    # The store is shared by all examples of a test, and grows: each example checks only its own data.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

_NAMES = [
    "train",
    "Train-2",
    "100%",
    "100 percent",
    "a_b",
    "axb",
    "a%b",
    "a\\b",
    "[ab]",
    "Straße",
    "naïve 🦆",
    "ÉTÉ",
    "'; --",
]
_NODES = ["gpu-1", "gpu-2", "ÿ"]
_BROKEN_CURSORS = [
    "",
    "x",
    "0" * 13,
    "0" * 13 + "-",
    "0" * 13 + "-zzzzzzzz",
    "-",
    "é",
    "\x00",
    "0000000000000-00000000",
    "a" * 10_000,
]


def a_crowd() -> list[Workload]:
    """Workloads of every kind and state, of several owners, oldest first."""
    made = []
    states, kinds = list(State), list(Kind)
    for number in range(90):
        workload = make.workload(
            states[number % len(states)],
            kind=kinds[number % 7 % 3],
            name=_NAMES[number % len(_NAMES)],
            owner=["ann", "bob", "Ann", "élise"][number % 4],
            tenant=["lab", "course"][number % 5 % 2],
            environment=["python", "torch", "r"][number % 11 % 3],
            array_id=None if number % 6 else make.workload_id()[:12] + "0",
            submitted_at=make.NOW + number * 0.5,
        )
        if workload.attempt is not None:
            allocation = replace(workload.attempt.allocation, node=_NODES[number % 3])
            workload = replace(workload, attempt=replace(workload.attempt, allocation=allocation))
        made.append(workload)
    return made


def fits(workload: Workload, which: Filter) -> bool:
    spec = workload.spec
    node = workload.attempt.allocation.node if workload.attempt else None
    text = None if which.text is None else which.text.casefold()
    return all(
        (
            which.owner is None or spec.owner == which.owner,
            which.tenant is None or spec.tenant == which.tenant,
            which.kinds is None or spec.kind in which.kinds,
            which.states is None or workload.state in which.states,
            which.node is None or node == which.node,
            which.array_id is None or spec.array_id == which.array_id,
            which.environment is None or spec.environment == which.environment,
            which.submitted_after is None or workload.submitted_at > which.submitted_after,
            which.visible is None or which.visible.has(spec.owner, spec.tenant),
            text is None or text in spec.name.casefold() or workload.id.startswith(text),
        )
    )


_CROWD: Final = a_crowd()


def filters() -> st.SearchStrategy[Filter]:
    """Filters that match some of the crowd, all, or none."""

    def maybe(*values: Any) -> st.SearchStrategy[Any]:
        return st.none() | st.none() | st.sampled_from(values)

    parts = [
        "",
        "t",
        "TRAIN",
        "%",
        "_",
        "\\",
        "100%",
        "ss",
        "été",
        "🦆",
        "'",
        "[",
        "nothing",
        _CROWD[3].id,
        _CROWD[40].id[:9],
    ]
    return st.builds(
        Filter,
        owner=maybe("ann", "Ann", "élise", "nobody"),
        tenant=maybe("lab", "course", "none"),
        kinds=st.none() | st.sets(st.sampled_from(Kind)) | st.lists(st.sampled_from(Kind)),
        states=st.none() | st.sets(st.sampled_from(State)),
        node=maybe(*_NODES, "none"),
        array_id=maybe(*{each.spec.array_id for each in _CROWD if each.spec.array_id}, "none"),
        environment=maybe("python", "torch", "none"),
        text=maybe(*parts),
        submitted_after=maybe(make.NOW - 1, make.NOW + 10, make.NOW + 44.5, 4e9),
        visible=maybe(Visible("ann"), Visible("élise", ("lab",)), Visible("nobody", ("lab", "course"), ("none",))),
    )


async def walk(store: Store, which: Filter, limit: int) -> list[Workload]:
    found: list[Workload] = []
    cursor = None
    while True:
        page = await store.workloads(which, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += page.items
        if page.next_cursor is None:
            return found
        assert len(page.items) == limit
        cursor = page.next_cursor


AllocatedRequest = tuple[Workload, list[Attempt]]
"""A workload, and all its attempts."""


@st.composite
def _users_of_nodes(draw: st.DrawFn) -> list[AllocatedRequest]:
    """Workloads of two new owners, held at whole seconds from 0 to 50."""
    owners = [f"ann-{make.workload_id()}", f"bob-{make.workload_id()}"]
    return [_use(draw, draw(st.sampled_from(owners))) for _ in range(draw(st.integers(1, 5)))]


def _use(draw: st.DrawFn, owner: str) -> AllocatedRequest:
    workload = make.workload(
        owner=owner,
        tenant=draw(st.sampled_from(["lab", "course"])),
        environment=draw(st.sampled_from(["python", "torch"])),
    )
    tries = []
    for number in range(1, draw(st.integers(0, 3)) + 1):
        shares = [
            make.share(memory_mib=draw(st.integers(0, make.DEVICE_MIB)), compute_milli=draw(st.integers(0, 1000)))
            for _ in range(draw(st.integers(0, 2)))
        ]
        attempt = make.attempt(workload.id, number)
        allocation = replace(
            attempt.allocation,
            at=float(draw(st.integers(0, 50))),
            shares=tuple(shares),
            cpus_milli=draw(st.integers(0, 64_000)),
            memory_mib=draw(st.integers(0, 2**20)),
        )
        ended = draw(st.none() | st.integers(0, 50))
        tries.append(replace(attempt, allocation=allocation, ended_at=None if ended is None else float(ended)))
    return workload, tries


@pytest.mark.anyio
class StoreReadingContract:
    """Results are ordered, complete, and match the query."""

    async def test_live_are_those_that_have_not_ended_oldest_first(self, store: Store) -> None:
        crowd = a_crowd()
        await store.commit(Batch(crowd[::2]))
        await store.commit(Batch(crowd[1::2]))
        assert await store.live() == [each for each in crowd if not each.state.is_terminal]
        assert await store.last_workload_id() == crowd[-1].id

    @settings(some_examples, max_examples=100)
    @given(which=filters(), limit=st.integers(1, 100))
    async def test_lists_and_counts_hold_what_the_filter_says(self, store: Store, which: Filter, limit: int) -> None:
        if await store.last_workload_id() is None:
            await store.commit(Batch(_CROWD))
        wanted = [each for each in reversed(_CROWD) if fits(each, which)]
        assert await walk(store, which, limit) == wanted
        counts = {state: len([each for each in wanted if each.state is state]) for state in State}
        assert await store.count(which) == {state: number for state, number in counts.items() if number}

    async def test_pages_have_no_gaps_while_others_insert(self, store: Store) -> None:
        before = [make.workload() for _ in range(25)]
        await store.commit(Batch(before))
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.workloads(Filter(owner="ann"), limit=4, cursor=cursor)
            seen += [each.id for each in page.items]
            await store.commit(Batch([make.workload() for _ in range(3)]))
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        assert seen == [each.id for each in reversed(before)]

    async def test_last_page_says_so(self, store: Store) -> None:
        await store.commit(Batch([make.workload() for _ in range(6)]))
        first = await store.workloads(Filter(), limit=3)
        assert first.next_cursor is not None
        second = await store.workloads(Filter(), limit=3, cursor=first.next_cursor)
        assert len(second.items) == 3
        assert second.next_cursor is None

    @pytest.mark.parametrize("cursor", _BROKEN_CURSORS, ids=range(len(_BROKEN_CURSORS)))
    async def test_broken_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            await store.workloads(Filter(), limit=3, cursor=cursor)
        assert caught.value.problem_code == "invalid-cursor"
        assert len(caught.value.message) < 300

    async def test_cursor_of_another_list_is_refused(self, store: Store) -> None:
        await store.commit(Batch([make.workload() for _ in range(6)]))
        states = [State.QUEUED, State.RUNNING]
        page = await store.workloads(Filter(owner="ann", states=states), limit=3)
        cursor = page.next_cursor
        for other in (Filter(), Filter(owner="ann"), Filter(owner="bob", states=states), Filter(tenant="ann")):
            with pytest.raises(InvalidInput):
                await store.workloads(other, limit=3, cursor=cursor)
        same = Filter(owner="ann", states={*reversed(states)})
        assert len((await store.workloads(same, limit=3, cursor=cursor)).items) == 3

    async def test_tries_are_given_oldest_first(self, store: Store) -> None:
        workload = make.workload()
        await store.commit(Batch([workload]))
        tries = []
        for number in range(1, 13):
            begun = make.attempt(workload.id, number, State.STARTING)
            workload = make.changed(workload, state=State.STARTING, attempt=begun)
            await store.commit(Batch(updates=[workload]))
            ended = make.attempt(workload.id, number, State.FAILED, reason=StartFailed(error=f"no {number}"))
            workload = make.changed(workload, state=State.HELD, attempt=ended)
            await store.commit(Batch(updates=[workload]))
            tries.append(ended)
        assert await store.attempts(workload.id) == tries
        assert (await store.workload(workload.id)).attempt == tries[-1]

    # --- events ---

    async def test_events_are_given_in_order(self, store: Store) -> None:
        anns, bobs = make.workload(), make.workload(State.RUNNING, owner="bob")
        told = [
            make.event(seq, of, reason=StartFailed(error=f"ü {seq}"))
            for seq, of in enumerate([anns, bobs, None] * 5, start=1)
        ]
        await store.commit(Batch([anns, bobs], events=told[10:]))
        await store.commit(Batch(events=told[:10]))
        assert await store.events() == told
        assert await store.last_event_seq() == 15
        assert await store.events(after=13) == told[13:]
        assert await store.events(limit=2) == told[:2]
        assert await store.events(after=4, limit=3) == told[4:7]
        assert await store.events(workload_id=anns.id) == told[0::3]
        assert await store.events(visible=Visible("bob"), after=2) == told[4::3]
        assert await store.events(visible=Visible("bob"), workload_id=anns.id) == []
        assert await store.events(visible=Visible("bob", shared=("lab",))) == told[1::3]
        assert await store.events(after=15) == []
        assert await store.events(after=10**30) == []
        assert await store.events(after=-(10**30)) == told

    async def test_events_of_a_tenant_are_given_once(self, store: Store) -> None:
        crowd = [make.workload(owner=owner, tenant=tenant) for tenant in ("lab", "course") for owner in ("ann", "bob")]
        told = [make.event(seq, of) for seq, of in enumerate(crowd, start=1)]
        told += [replace(make.event(5), tenant="lab"), replace(make.event(6), tenant="course"), make.event(7)]
        await store.commit(Batch(crowd, events=told))

        async def seen(*tenants: str, shared: tuple[str, ...] = (), after: int = 0, limit: int = 9) -> list[int]:
            visible = Visible("ann", tenants, shared)
            return [each.seq for each in await store.events(visible=visible, after=after, limit=limit)]

        assert await seen() == [1, 3]
        assert await seen(shared=("lab",)) == [1, 3, 5]
        assert await seen("lab") == [1, 2, 3, 5]
        assert await seen("lab", shared=("lab", "course")) == [1, 2, 3, 5, 6]
        assert await seen("lab", "course", after=1, limit=3) == [2, 3, 4]

    # --- usage ---

    @settings(some_examples, max_examples=60)
    @given(crowd=_users_of_nodes(), since=st.integers(-5, 60), until=st.integers(-5, 60))
    async def test_usage_is_what_was_held_within_the_window(
        self, store: Store, crowd: list[AllocatedRequest], since: int, until: int
    ) -> None:
        for workload, tries in crowd:
            await store.commit(Batch([workload]))
            for version, attempt in enumerate(tries, start=2):
                await store.commit(Batch(updates=[replace(workload, attempt=attempt, version=version)]))
        for owner in {workload.spec.owner for workload, _ in crowd}:
            theirs = [(workload, tries) for workload, tries in crowd if workload.spec.owner == owner]
            for by in ("owner", "tenant", "workload", "environment"):
                found = await store.usage(since=since, until=until, by=by, visible=Visible(owner))
                _same(found, _second_by_second(theirs, since, until, by))
        workload, tries = crowd[0]
        found = await store.usage(since=since, until=until, by="owner", workload_id=workload.id)
        _same(found, _second_by_second([(workload, tries)], since, until, "owner"))

    async def test_usage_of_everybody_is_in_order(self, store: Store) -> None:
        crowd = [make.workload(State.SUCCEEDED, owner=owner) for owner in ("zoe", "Ann", "élise", "ann", "Ann")]
        await store.commit(Batch(crowd))
        found = await store.usage(since=make.NOW, until=make.NOW + 5, by="owner")
        assert [(each.subject, each.workloads) for each in found] == [("Ann", 2), ("ann", 1), ("zoe", 1), ("élise", 1)]
        assert found[0].cpu_h == pytest.approx(2 * 5 / 3600)

    async def test_past_holds_are_those_that_ended_since_the_last_first(self, store: Store) -> None:
        device = make.device(memory_mib=make.DEVICE_MIB)
        crowd = []
        for number, ended_at in enumerate((None, 10.0, 30.0, 20.0)):
            one = make.workload(State.RUNNING, owner=f"user-{number}", tenant="lab")
            allocation = make.allocation(
                f"{one.id}-1", shares=[make.share(device, memory_mib=make.DEVICE_MIB // 2)], at=5.0
            )
            tried = make.attempt(one.id, allocation=allocation, ended_at=ended_at)
            crowd.append(replace(one, attempt=tried))
        await store.commit(Batch(crowd))
        half = Amounts(1000, 1024, 500, make.DEVICE_MIB // 2)
        found = await store.past_holds(since=20.0, limit=9)
        assert [(one.owner, one.tenant, one.amounts, one.began_at, one.ended_at) for one in found] == [
            ("user-2", "lab", half, 5.0, 30.0),
            ("user-3", "lab", half, 5.0, 20.0),
        ]
        assert await store.past_holds(since=0.0, limit=1) == found[:1]

    async def test_gpu_times_are_sums_by_account_and_model_from_an_instant(self, store: Store) -> None:
        crowd = []
        for model, at, ended_at in (
            ("A100", 5.0, 15.0), ("A100", 12.0, 20.0), ("T4", 5.0, 30.0), ("T4", 5.0, None), ("T4", 1.0, 9.0),
        ):  # fmt: skip
            one = make.workload(State.RUNNING, owner="ann", tenant="times", environment="torch")
            device = make.device(memory_mib=make.DEVICE_MIB, model=model)
            shares = [make.share(device, compute_milli=500)]
            allocation = make.allocation(f"{one.id}-1", shares=shares, at=at)
            tried = make.attempt(one.id, allocation=allocation, ended_at=ended_at)
            crowd.append(replace(one, attempt=tried))
        await store.commit(Batch(crowd))
        found = [one for one in await store.gpu_times(since=10.0) if one.tenant == "times"]
        assert [(one.owner, one.environment, one.model, one.gpu_milli_s) for one in found] == [
            ("ann", "torch", "A100", 500 * 13.0),
            ("ann", "torch", "T4", 500 * 20.0),
        ]
        # The usage query also counts the one that still runs.
        (usage,) = [one for one in await store.usage(since=10.0, until=30.0, by="tenant") if one.subject == "times"]
        assert usage.gpu_h == pytest.approx((sum(one.gpu_milli_s for one in found) + 500 * 20.0) / 1000 / 3600)


def _second_by_second(crowd: Iterable[AllocatedRequest], since: int, until: int, by: str) -> dict[str, Usage]:
    """A slow implementation of usage: sum the holders in every second of the window."""
    sums: dict[str, list[float]] = {}
    who: dict[str, set[str]] = {}
    for workload, tries in crowd:
        subject = workload.id if by == "workload" else getattr(workload.spec, by)
        for attempt in tries:
            for second in range(since, until):
                if attempt.allocation.at <= second and (attempt.ended_at is None or second < attempt.ended_at):
                    held = sums.setdefault(subject, [0.0] * 4)
                    who.setdefault(subject, set()).add(workload.id)
                    held[0] += sum(share.memory_mib for share in attempt.allocation.shares) / 1024 / 3600
                    held[1] += sum(share.compute_milli for share in attempt.allocation.shares) / 1000 / 3600
                    held[2] += attempt.allocation.cpus_milli / 1000 / 3600
                    held[3] += attempt.allocation.memory_mib / 1024 / 3600
    return {subject: Usage(subject, len(who[subject]), *held) for subject, held in sums.items()}


def _same(found: Iterable[Usage], wanted: dict[str, Usage]) -> None:
    assert [each.subject for each in found] == sorted(wanted)
    for each in found:
        other = wanted[each.subject]
        assert each.workloads == other.workloads
        for name in ("gpu_gib_h", "gpu_h", "cpu_h", "memory_gib_h"):
            assert getattr(each, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9)
