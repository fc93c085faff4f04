"""Requests and queries of users: admission, keys, arrays, dry runs, sessions through the hub, events, permissions."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.control.world import ANN, BOB, ROOT, SPAWNER, USER, Site, job, submit

from commonage.control.control import Control
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import (
    CommonageError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Unavailable,
    Unschedulable,
)
from commonage.domain.explanations import Confidence
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import attempts, waiting
from commonage.domain.reasons.notes import Submitted
from commonage.domain.requests import parse_gpus
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Condition, Dependency, EventKind, Kind, State
from commonage.ports.store import Filter
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import node_key

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("ask", "error", "code", "words"),
    [
        (job(environment="nowhere"), InvalidInput, "unknown-environment",
         "EnvironmentNotOffered(environment='nowhere', kind='job'"),
        (job(environment="notebook"), InvalidInput, "unknown-environment",
         "exists=True, removed=None, offered=('base',)"),
        (job(environment="x" * 300), InvalidInput, "unknown-environment", "..."),
        (job(gpu=parse_gpus("H100:1")), Unschedulable, "unschedulable", "GpuModelNotFound(model='H100', models=('A30',))"),  # noqa: E501
        (job(gpu=parse_gpus("30GiB")), Unschedulable, "unschedulable", "TooMuchGpuMemory(requested_mib=30720"),
        (job(gpu=parse_gpus("2")), Unschedulable, "unschedulable", "TooManyGpus(requested=2, most=1)"),
        (job(cpus_milli=9000), Unschedulable, "unschedulable", "InsufficientCpu("),
        (job(name="n" * 300), InvalidInput, "invalid-name", "the name has 300 characters; 128 are allowed"),
        (Submission(Kind.JOB), InvalidInput, "invalid-command", "a job needs a command to run"),
        (job(" "), InvalidInput, "invalid-command", "the command starts with an empty"),
        (job("x" * 200_000), InvalidInput, "too-large", "longer than 128 KiB"),
        (job(variables=(("A", "x" * 70_000),), secrets=(("B", "ä" * 40_000),)), InvalidInput, "too-large",
         "variables and secrets have 147 KiB together; at most 128 KiB are allowed"),
        (job(secrets=(("A", "x" * 7000),), array_size=10_000), InvalidInput, "too-large",
         "the secrets have 7 KiB for each of 10000 members; at most 64 MiB are allowed for all"),
        (job(priority=1), Forbidden, "not-admin", "only admins may raise a priority above 0"),
        (job(owner="bob"), Forbidden, "not-admin", "only admins may submit for another user"),
        (job(tenant="physics"), Forbidden, "not-a-member", "choose one of: commons"),
        (job(priority="hihg"), InvalidInput, "unknown-priority", "there are scavenger (-50), low (-10), normal (0)"),
        (job(priority="high"), Forbidden, "not-admin", "only admins may give the priority 'high'"),
        (job(gang=True, array_size=1025), InvalidInput, "invalid-array", "at most 1024 start together"),
        (job(array_size=10_001), InvalidInput, "invalid-array", "an array of 10001 was requested; 1 to 10000"),
        (job(array_size=-1), InvalidInput, "invalid-array", "an array of -1"),
        (Submission(Kind.SERVICE, ("x",), array_size=2), InvalidInput, "invalid-array", "only jobs can be arrays"),
        (job(bundle="gone"), NotFound, "bundle-not-found", "ann keeps none with the digest gone"),
        (job(depends_on=(Dependency("nobody"),)), InvalidInput, "unknown-dependency",
         "it depends on 'nobody', which does not exist"),
    ],
)  # fmt: skip
async def test_what_is_not_admitted_and_the_dry_run_says_the_same(
    site: Site, ask: Submission, error: type[CommonageError], code: str, words: str
) -> None:
    async with site.open() as control:
        for asking in (control.workloads.submit(ANN, ask), control.workloads.dry_run(ANN, ask)):
            with pytest.raises(error) as raised:
                await asking
            assert raised.value.problem_code == code
            assert words in str(raised.value)
    assert site.all() == []


async def test_what_admins_and_members_may_ask() -> None:
    site = Site(rules=Rules((Tenant("physics"),)))
    member = Principal("ann", USER, groups=("physics",))
    async with site.open() as control:
        assert (await submit(control, job(tenant="physics"), member)).spec.tenant == "physics"
        for_bob = await submit(control, job(owner="bob", priority=5, tenant="physics"), ROOT)
        assert (for_bob.spec.owner, for_bob.spec.priority) == ("bob", 5)
        assert (await submit(control, job(priority=-5))).spec.priority == -5
        low = await submit(control, job(priority="scavenger"))
        assert (low.spec.priority, low.spec.preemptible) == (-50, True)
        assert not (await submit(control, job(priority="scavenger", preemptible=False))).spec.preemptible


async def test_defaults_and_names() -> None:
    site = Site(default_cpus_milli=500, default_memory_mib=256)
    async with site.open() as control:
        one = await submit(control, job("python", "-c", "print(1)\nprint(2)"))
        assert (one.spec.request.cpus_milli, one.spec.request.memory_mib) == (500, 256)
        assert one.spec.name == "python -c 'print(1) print(2)'"
        assert (one.spec.environment, one.spec.tenant) == ("base", "commons")
        assert (await submit(control, job("python", "x" * 200))).spec.name == "python " + "x" * 53


async def test_repeated_dependency_is_kept_once(site: Site, control: Control) -> None:
    first = await submit(control, job())
    after = await submit(control, job("y", depends_on=(Dependency(first.id),) * 100))
    assert after.spec.depends_on == (Dependency(first.id),)


async def test_a_key_gives_the_same_workload_again(site: Site) -> None:
    site.default = Behaviour()
    site.engine.default = Behaviour()
    async with site.open() as control:
        first = await control.workloads.submit(ANN, job(key="k"))
        again = await control.workloads.submit(ANN, job(key="k"))
        await site.clock.advance(5)
        ended = await control.workloads.submit(ANN, job(key="k"))
        assert (first.created, again.created, ended.created) == (True, False, False)
        assert {one.workloads[0].id for one in (first, again, ended)} == {first.workloads[0].id}
        assert ended.workloads[0].state is State.SUCCEEDED
        assert (await control.workloads.submit(BOB, job(key="k"))).created, "everybody has keys of their own"
        with pytest.raises(Conflict) as error:
            await control.workloads.submit(ANN, job("other", key="k"))
        assert error.value.problem_code == "key-reused"


async def test_a_key_answers_even_when_it_could_not_be_placed_any_more(site: Site, control: Control) -> None:
    first = await control.workloads.submit(ANN, job(key="k", gpu=parse_gpus("1")))
    site.engine.lose_node("gpu-1")
    await site.clock.advance(60)
    again = await control.workloads.submit(ANN, job(key="k", gpu=parse_gpus("1")))
    assert again.workloads[0].id == first.workloads[0].id


async def test_one_key_many_times_at_once(site: Site) -> None:
    async with site.open() as control:
        found = await asyncio.gather(*(control.workloads.submit(ANN, job(key="k")) for _ in range(20)))
        assert sum(one.created for one in found) == 1
        assert len({one.workloads[0].id for one in found}) == 1
    assert len(site.all()) == 1


async def test_an_array_comes_whole_and_again_by_its_key(site: Site, control: Control) -> None:
    first = await control.workloads.submit(ANN, job(array_size=50, key="k"))
    again = await control.workloads.submit(ANN, job(array_size=50, key="k"))
    ids = [one.id for one in first.workloads]
    assert [one.id for one in again.workloads] == ids == sorted(set(ids))
    assert [one.array_index for one in first.workloads] == list(range(50))
    assert {one.spec.array_id for one in first.workloads} == {ids[0]}
    page = await control.queries.workloads(ANN, Filter(array_id=ids[0]), limit=100)
    assert len(page.items) == 50
    submitted = [event for event in site.store.shelf.events if event.kind is EventKind.SUBMITTED]
    assert [event.reason for event in submitted] == [Submitted(count=50, request="1 CPU, 1 GiB of memory")]


async def test_ids_rise_over_a_restart_though_the_clock_went_back(site: Site) -> None:
    async with site.open() as control:
        first = await submit(control)
    site.clock._now -= 1000
    async with site.open() as control:
        assert (await submit(control)).id > first.id


@pytest.mark.parametrize("gpus", [None, "6GiB", "0.5", "1", "12GiB", "20GiB"])
@pytest.mark.parametrize("taken", [None, "16GiB", "8GiB"])
async def test_the_dry_run_agrees_with_submit(
    site: Site, control: Control, gpus: str | None, taken: str | None
) -> None:
    if taken:
        await submit(control, job(gpu=parse_gpus(taken)))
        await site.clock.advance(1)
    told = await control.workloads.dry_run(BOB, job(gpu=parse_gpus(gpus)))
    one = await submit(control, job(gpu=parse_gpus(gpus)), BOB)
    await site.clock.advance(1)
    assert told.workload_id is None
    assert told.startable_now == (site.there(one).state is State.RUNNING)
    if not told.startable_now:
        assert (await control.queries.explain(BOB, one.id)).reasons == told.reasons
        if told.fits_now_gpus:
            smaller = await submit(control, job(gpu=parse_gpus(told.fits_now_gpus)), BOB)
            await site.clock.advance(1)
            assert site.there(smaller).state is State.RUNNING


async def test_the_dry_run_of_one_that_waits_for_others(control: Control) -> None:
    first = await submit(control)
    told = await control.workloads.dry_run(ANN, job(depends_on=(Dependency(first.id),)))
    assert told.reasons == (waiting.DependencyNotMet(others=(waiting.Other(first.id, "true", "queued"),)),)
    assert not told.startable_now


async def test_nobody_learns_of_others_work_by_depending_on_it(control: Control) -> None:
    anns = await submit(control)
    with pytest.raises(InvalidInput, match="which does not exist"):
        await submit(control, job(depends_on=(Dependency(anns.id, Condition.AFTER_ANY),)), BOB)
    assert (await submit(control, job(depends_on=(Dependency(anns.id),)), ROOT)).state is State.HELD


async def test_others_work_is_not_there(site: Site, control: Control) -> None:
    anns = await submit(control)
    await site.clock.advance(1)
    messages = set()
    for missing in (anns.id, "0000000000000"):
        asks = [
            control.queries.workload(BOB, missing),
            control.queries.explain(BOB, missing),
            control.queries.attempts(BOB, missing),
            control.queries.events(BOB, workload_id=missing),
            control.queries.workload_usage(BOB, missing),
            control.queries.metrics(BOB, f"attempt:{missing}-1", metrics=["cpu_cores"], since=0, until=1),
            control.workloads.stop(BOB, missing),
            anext(control.queries.logs(BOB, missing)),
            anext(control.queries.follow(BOB, workload_id=missing)),
        ]
        for ask in asks:
            with pytest.raises(NotFound) as error:
                await ask
            assert error.value.problem_code == "workload-not-found"
            messages.add(str(error.value).replace(missing, "ID"))
    assert messages == {"there is no workload ID"}, "nor does the sentence tell"
    assert (await control.queries.workloads(BOB, Filter(owner="ann"), limit=10)).items == []
    assert await control.queries.counts(BOB, Filter()) == {}
    assert await control.queries.events(BOB) == []
    assert (await control.queries.workload(ROOT, anns.id)).id == anns.id
    assert len((await control.queries.workloads(ROOT, Filter(owner="ann"), limit=10)).items) == 1
    assert [one.subject for one in await control.queries.usage(ROOT, since=0, until=2e9, by="owner")] == ["ann"]
    assert await control.queries.usage(BOB, since=0, until=2e9, by="owner") == []


async def test_scopes(site: Site) -> None:
    reader = Principal("ann", frozenset({Scope.READ}))
    nobody = Principal("ann", frozenset())
    async with site.open() as control:
        one = await submit(control)
        for ask in (
            control.workloads.submit(reader, job()),
            control.workloads.dry_run(reader, job()),
            control.workloads.stop(reader, one.id),
        ):
            with pytest.raises(Forbidden, match="custom:commonage:submit"):
                await ask
        with pytest.raises(Forbidden, match="custom:commonage:read"):
            await control.queries.workload(nobody, one.id)
        with pytest.raises(Forbidden, match="drain-nodes"):
            await control.nodes.drain(ANN, node_key("gpu-1"), True)
        with pytest.raises(NotFound, match="there is no node 'gpu-9'; there are: cpu-1, gpu-1"):
            await control.nodes.drain(ROOT, node_key("gpu-9"), True)


async def test_a_user_called_hub_is_not_the_hub() -> None:
    site = Site(session_appears_within_s=0.2)
    async with site.open() as control:
        asking = asyncio.ensure_future(control.workloads.submit(Principal("hub", USER), Submission(Kind.SESSION)))
        await site.clock.advance(1)
        with pytest.raises(Unavailable):
            await asking
    assert [user for user, _, _ in site.hub.asked] == ["hub"]


async def test_a_session_goes_through_the_hub_and_comes_back_from_its_spawner(site: Site, control: Control) -> None:
    async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
        async def later() -> None:
            await site.clock.sleep(0.5)
            ask = Submission(Kind.SESSION, name=name, owner=user, key=options["key"], gpu=parse_gpus(options["gpus"]))
            await control.workloads.submit(SPAWNER, ask)

        site.spawning = asyncio.create_task(later())  # type: ignore[attr-defined]

    site.hub.spawn = spawn
    ask = Submission(Kind.SESSION, gpu=parse_gpus("6GiB"), time_limit_s=3600, variables=(("A", "1"),))
    asking = asyncio.ensure_future(control.workloads.submit(ANN, ask))
    await site.clock.advance(2)
    found = (await asking).workloads[0]
    assert (found.spec.owner, found.spec.kind, found.spec.name) == ("ann", Kind.SESSION, "")
    user, name, options = site.hub.asked[0]
    assert (user, name) == ("ann", "")
    assert options.items() >= {
        "environment": "notebook", "cpus": "1", "memory": "1024MiB", "gpus": "6144MiB", "time": "3600s",
        "variables": {"A": "1"}, "priority": 0, "tenant": "commons",
    }.items()  # fmt: skip
    assert site.there(found).state is State.RUNNING


async def test_a_session_that_the_hub_submits_at_the_last_moment_is_found() -> None:
    site = Site(session_appears_within_s=0.175)
    async with site.open() as control:

        async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
            await site.clock.sleep(0.16)
            await control.workloads.submit(SPAWNER, Submission(Kind.SESSION, owner=user, key=options["key"]))

        site.hub.spawn = spawn
        asking = asyncio.ensure_future(control.workloads.submit(ANN, Submission(Kind.SESSION)))
        await site.clock.advance(1)
        assert (await asking).workloads[0].spec.owner == "ann"


async def test_who_stopped_it(site: Site, control: Control) -> None:
    for who, name in ((ANN, "ann"), (ROOT, "root"), (SPAWNER, "ann")):
        one = await submit(control, job(depends_on=()))
        await control.workloads.stop(who, one.id)
        await site.clock.advance(1)
        assert site.there(one).reason == attempts.StoppedBy(by=name)


async def test_standing_and_explanation(site: Site, control: Control) -> None:
    holds = await submit(control, job(gpu=parse_gpus("16GiB"), name="train"))
    await site.clock.advance(1)
    first, second = [await submit(control, job(gpu=parse_gpus("12GiB")), BOB) for _ in range(2)]
    assert control.queries.details(first).position == 1
    await site.clock.advance(1)
    details = control.queries.details(second)
    assert details.position == 2
    assert isinstance(details.reason, waiting.InsufficientGpuMemory)
    assert (details.reason.node, details.reason.requested_mib) == ("gpu-1", 12 * 1024)
    assert (details.reason.free_mib, details.reason.total_mib) == (8 * 1024, 24 * 1024)
    told = await control.queries.explain(BOB, second.id)
    assert [one.workload_id for one in told.holders] == [holds.id]
    assert told.fits_now_gpus == "8192MiB"
    assert (await control.queries.explain(ANN, holds.id)).reasons == (attempts.Running(node="gpu-1"),)
    assert control.queries.details(site.there(holds)).reason == attempts.Running(node="gpu-1")
    assert (control.queries.queue_length(), control.queries.live_counts()) == (
        2,
        {State.RUNNING: 1, State.QUEUED: 2},
    )


@pytest.mark.parametrize("behind", [0, 3, 700])
async def test_following_has_no_gap_and_no_repetition(site: Site, control: Control, behind: int) -> None:
    """Events that were, that come while they are read, and that come afterwards."""
    before = [event.seq for event in site.store.shelf.events if event.owner == "ann"]
    for _ in range(behind):
        await submit(control)
    seen: list[int] = []

    async def follow() -> None:
        async for event in control.queries.follow(ANN, after=0):
            seen.append(event.seq)

    following = asyncio.create_task(follow())
    for number in range(200):
        await submit(control, principal=BOB if number % 3 == 0 else ANN)
    await site.clock.advance(3)
    expected = [event.seq for event in site.store.shelf.events if event.owner == "ann"]
    assert before == []
    assert seen == expected
    following.cancel()


async def test_following_one_workload_from_now_on(site: Site, control: Control) -> None:
    one = await submit(control)
    other = await submit(control)
    seen = []

    async def follow() -> None:
        async for event in control.queries.follow(ANN, workload_id=one.id):
            seen.append((event.workload_id, event.kind))

    following = asyncio.create_task(follow())
    await site.clock.advance(0.001)
    await control.workloads.stop(ANN, one.id)
    await control.workloads.stop(ANN, other.id)
    await site.clock.advance(1)
    assert seen[-1] == (one.id, EventKind.ENDED)
    assert {workload for workload, _ in seen} == {one.id}
    following.cancel()


async def test_usage_and_metrics(site: Site, control: Control) -> None:
    one = await submit(control, job(gpu=parse_gpus("12GiB")))
    await site.clock.advance(3600)
    used = await control.queries.workload_usage(ANN, one.id)
    assert used.gpu_gib_h == pytest.approx(12, rel=0.01)
    waits = await submit(control, job(gpu=parse_gpus("1")))
    assert (await control.queries.workload_usage(ANN, waits.id)).cpu_h == 0
    with pytest.raises(InvalidInput, match="usage by 'colour' is not known"):
        await control.queries.usage(ANN, since=0, until=1, by="colour")
    found = await control.queries.metrics(ANN, "platform", metrics=["queue_length", "nothing"], since=0, until=2e9)
    assert list(found) == ["queue_length"]


async def test_the_launch_form_and_the_nodes(site: Site, control: Control) -> None:
    await submit(control, job(gpu=parse_gpus("16GiB"), name="train"))
    await site.clock.advance(1)
    options = control.launch.options(ANN)
    free = {choice.gpus: (choice.free_now, choice.why_not) for choice in options.gpu_choices}
    assert free["8GiB"] == (True, None)
    waits, why_not = free["12GiB"]
    assert not waits
    assert isinstance(why_not, waiting.InsufficientGpuMemory)
    assert (why_not.node, why_not.free_mib) == ("gpu-1", 8 * 1024)
    assert free["1"][0] is False
    assert (options.models, options.max_vram_mib, options.simulated_gpus) == (("A30",), 24 * 1024, True)
    cpu, gpu = control.node_views.all()
    assert (cpu.node.name, gpu.node.name, gpu.workloads) == ("cpu-1", "gpu-1", 1)
    device = gpu.devices[0]
    assert (device.free_mib, device.free_compute_milli) == (8 * 1024, 334)
    assert [(one.name, one.owner, one.holds.gpu_memory_mib) for one in device.holders] == [("train", "ann", 16 * 1024)]
    assert {view.environment.name: str(view.status.state) for view in control.environments.views()} == {
        "base": "absent", "notebook": "absent",
    }  # fmt: skip
    await site.clock.advance(6)
    assert {str(view.status.state) for view in control.environments.views()} == {"ready", "absent"}
    assert control.node_views.capabilities()[0].name == "fake"
    assert options.free_cpus_milli > 0
    for name in ("cpu-1", "gpu-1"):
        await control.nodes.drain(ROOT, node_key(name), True)
    nothing = control.launch.options(ANN)
    assert (nothing.free_cpus_milli, nothing.free_memory_mib) == (0, 0), "of nodes that take work"


async def test_reads_of_what_has_ended_come_from_the_store(site: Site) -> None:
    site.engine.default = Behaviour()
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
        assert control.live_state.get(one.id) is None
        assert (await control.queries.workload(ANN, one.id)).state is State.SUCCEEDED
        assert [attempt.number for attempt in await control.queries.attempts(ANN, one.id)] == [1]
        assert (await control.queries.explain(ANN, one.id)).reasons == (attempts.Completed(),)
        assert control.queries.details(await control.queries.workload(ANN, one.id)).position is None
        kinds = [event.kind for event in await control.queries.events(ANN, workload_id=one.id)]
        assert kinds[-1] is EventKind.ENDED


async def test_a_gang_that_is_only_considered_is_considered_whole() -> None:
    site = Site([factories.node("gpu-1", 1), factories.node("gpu-2", 1)])
    async with site.open() as control:
        both = job(gpu=parse_gpus("1"), gang=True, array_size=2)
        assert (await control.workloads.dry_run(ANN, both)).startable_now
        await submit(control, job(gpu=parse_gpus("1")))
        await site.clock.advance(1)
        told = await control.workloads.dry_run(ANN, both)
        assert not told.startable_now
        assert told.reasons[0] == waiting.InsufficientNodes(size=2, nodes=1)


async def test_how_long_such_work_took_tells_when_it_starts_also_after_a_restart() -> None:
    site = Site([factories.node("gpu-1", 1)])
    whole = job(gpu=parse_gpus("1"))
    async with site.open() as control:
        for _ in range(10):
            one = await submit(control, whole)
            await site.clock.advance(600)
            await control.workloads.stop(ANN, one.id)
            await site.clock.advance(60)
        await submit(control, whole)
        await site.clock.advance(100)
        waits = await submit(control, whole, BOB)
    async with site.open() as control:
        told = await control.queries.explain(BOB, waits.id)
        assert told.confidence is Confidence.LIKELY
        assert told.expected_start_at is not None
        assert 400 < told.expected_start_at - site.clock.now() < 600
