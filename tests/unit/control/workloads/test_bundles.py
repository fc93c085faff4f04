"""Bundles: whose they are, how many may be kept, and that none is removed which a workload needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.control.world import ANN, BOB, ROOT, Site, job, submit

from commonage.control.control import Control
from commonage.control.settings import BundleLimits
from commonage.control.workloads.bundles import EVERY_S, UPLOADS_PER_USER
from commonage.domain.errors import NotFound, TooMany
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.workloads import Condition, Dependency, State
from commonage.ports.bundles import KeptBundle

pytestmark = pytest.mark.anyio
KEEP_S = 60
MIB = 1 << 20


async def content(digest: str, size: int = 0) -> AsyncIterator[bytes]:
    yield f"{digest} {size}".encode()


async def send(control: Control, who: Principal, digest: str, size: int = 0) -> KeptBundle:
    return await control.bundles.send(who, content(digest, size))


def digests(site: Site) -> list[str]:
    return sorted(one.digest for one in site.bundles.kept.values())


async def test_nobody_submits_with_the_bundle_of_somebody_else(site: Site, control: Control) -> None:
    await send(control, ANN, "a")
    for asking in (control.workloads.submit(BOB, job(bundle="a")), control.workloads.dry_run(BOB, job(bundle="a"))):
        with pytest.raises(NotFound, match="bob keeps none"):
            await asking
    await control.workloads.submit(ANN, job(bundle="a"))
    await send(control, BOB, "a")
    await control.workloads.submit(BOB, job(bundle="a"))
    assert digests(site) == ["a", "a"]


async def test_what_an_admin_sends_for_another_becomes_the_others(site: Site, control: Control) -> None:
    await send(control, ROOT, "a")
    await control.workloads.submit(ROOT, job(bundle="a", owner="ann"))
    await control.workloads.submit(ANN, job(bundle="a"))
    await control.workloads.submit(ROOT, job(bundle="a", owner="ann"))
    assert sorted(one.owner for one in site.bundles.kept.values()) == ["ann", "root"]


async def test_the_number_of_one_users_bundles_is_bounded() -> None:
    site = Site(bundles=BundleLimits(per_user=3))
    async with site.open() as control:
        for digest in "abc":
            await send(control, ANN, digest)
            await control.workloads.submit(ANN, job(bundle=digest))
        await send(control, ANN, "a")  # it is there already
        with pytest.raises(TooMany, match="the user ann keeps 3 of 3 allowed") as caught:
            await send(control, ANN, "d")
        assert caught.value.problem_code == "too-many-bundles"
        await send(control, BOB, "d")
        assert digests(site) == ["a", "b", "c", "d"]


async def test_the_space_of_one_users_bundles_is_bounded() -> None:
    site = Site(bundles=BundleLimits(per_user_mib=10))
    async with site.open() as control:
        await send(control, ANN, "a", 6 * MIB)
        with pytest.raises(TooMany, match="with 6 MiB of 10 MiB in all, and 5120 KiB more"):
            await send(control, ANN, "b", 5 * MIB)
        await send(control, ANN, "c", 4 * MIB)
        await send(control, BOB, "b", 5 * MIB)


async def test_the_bundles_of_one_tenants_members_are_bounded_together() -> None:
    site = Site(bundles=BundleLimits(per_tenant=2))
    async with site.open() as control:
        await send(control, ANN, "a")
        await send(control, BOB, "b")
        with pytest.raises(TooMany, match="the tenant commons keeps 2 of 2 allowed"):
            await send(control, ROOT, "c")


async def test_the_loop_removes_without_being_asked() -> None:
    site = Site(bundles=BundleLimits(keep_s=KEEP_S))
    async with site.open() as control:
        await send(control, ANN, "a")
        await site.clock.advance(EVERY_S)
        assert digests(site) == []


async def test_at_a_limit_what_nobody_needs_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.control.workloads.bundles.SOON_S", 10.0)
    site = Site(bundles=BundleLimits(per_user=2))
    async with site.open() as control:
        await send(control, ANN, "needed")
        await control.workloads.submit(ANN, job(bundle="needed"))
        await send(control, ANN, "unneeded")
        await site.clock.advance(11)
        await send(control, ANN, "new")
        assert digests(site) == ["needed", "new"]


async def test_uploads_at_the_same_time_are_bounded_for_each_user() -> None:
    site, over = Site(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await over.wait()
        yield b"slow"

    async with site.open() as control:
        tasks = [asyncio.create_task(control.bundles.send(ANN, slow())) for _ in range(UPLOADS_PER_USER)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany, match=f"{UPLOADS_PER_USER} are allowed") as caught:
            await send(control, ANN, "a")
        assert caught.value.problem_code == "too-many-uploads"
        await send(control, BOB, "b")
        over.set()
        await asyncio.gather(*tasks)
        await send(control, ANN, "a")


async def test_what_no_live_workload_needs_is_removed_in_time() -> None:
    site = Site(bundles=BundleLimits(keep_s=KEEP_S))
    async with site.open() as control:
        for digest in ("held", "ended", "unused"):
            await send(control, ANN, digest)
        live = await submit(control, job(bundle="held"))
        ended = await submit(control, job(bundle="ended"))
        await site.clock.advance(1)
        await control.workloads.stop(ANN, ended.id)
        assert await control.bundles.collect() == 0
        await site.clock.advance(KEEP_S)
        assert await control.bundles.collect() == 2
        assert digests(site) == ["held"]
        await control.workloads.stop(ANN, live.id)
        await site.clock.advance(1)
        assert await control.bundles.collect() == 1
        assert digests(site) == []
        with pytest.raises(NotFound, match="Send the files again"):
            await control.workloads.submit(ANN, job(bundle="held"))


async def test_a_submission_under_way_keeps_its_bundle() -> None:
    """The bundle is old, and the workload not written yet while bundles are collected."""
    site = Site(bundles=BundleLimits(keep_s=KEEP_S))
    async with site.open() as control:
        await send(control, ANN, "a")
        await site.clock.advance(KEEP_S - 10)
        commit, written = site.store.commit, asyncio.Event()

        async def late(batch: object) -> None:
            await written.wait()
            await commit(batch)  # type: ignore[arg-type]

        site.store.commit = late  # type: ignore[method-assign]
        submitting = asyncio.create_task(control.workloads.submit(ANN, job(bundle="a")))
        await site.clock.advance(20)
        await control.bundles.collect()
        written.set()
        (made,) = (await submitting).workloads
        await site.clock.advance(10)
        assert site.bundles.removed == []
        assert site.there(made).attempt is not None, "it did not start"


async def test_a_bundle_is_either_claimed_or_refused_however_calls_interleave() -> None:
    """An admitted workload finds its bundle at its start; a late submission is refused before anything is written."""
    for iterations in range(30):
        site = Site(bundles=BundleLimits(keep_s=KEEP_S))
        async with site.open() as control:
            await send(control, ANN, "a")
            control.bundles._kept["ann", "a"]["commons"] = KeptBundle("commons", "ann", "a", 0, 0.0)
            collecting = asyncio.create_task(control.bundles.collect())
            for _ in range(iterations % 6):
                await asyncio.sleep(0)
            submitting = asyncio.create_task(control.workloads.submit(ANN, job(bundle="a")))
            for _ in range(iterations // 6):
                await asyncio.sleep(0)
            sending = asyncio.create_task(send(control, ANN, "a"))
            await site.clock.advance(5)
            answers = await asyncio.gather(collecting, submitting, sending, return_exceptions=True)
            assert not isinstance(answers[2], BaseException)
            assert digests(site) == ["a"], "what was sent again is gone"
            if isinstance(answers[1], NotFound):
                assert site.all() == []
            else:
                assert [one.attempt is not None for one in site.all()] == [True]


async def test_a_restart_knows_what_is_kept_and_needed() -> None:
    site = Site(bundles=BundleLimits(per_user=2, keep_s=KEEP_S))
    async with site.open() as control:
        await send(control, ANN, "needed")
        await send(control, ANN, "unneeded")
        await control.workloads.submit(ANN, job(bundle="needed"))
    async with site.open() as control:
        with pytest.raises(TooMany):
            await send(control, ANN, "third")
        await site.clock.advance(KEEP_S + 1)
        await control.bundles.collect()
        assert digests(site) == ["needed"]


async def test_what_an_older_release_kept_becomes_that_of_those_who_need_it() -> None:
    site = Site(bundles=BundleLimits(keep_s=KEEP_S))
    async with site.open() as control:
        await send(control, ANN, "a")
        queued = await submit(control, job(bundle="a", cpus_milli=1))
    old = [KeptBundle("", "", digest, 7, site.clock.now()) for digest in ("a", "b")]
    site.bundles.kept = {site.bundles.path(one): one for one in old}
    async with site.open() as control:
        assert control.bundles.path(site.there(queued).spec) == site.bundles.path(
            KeptBundle("commons", "ann", "a", 7, 0)
        )
        with pytest.raises(NotFound):
            await control.workloads.submit(BOB, job(bundle="b"))
        await site.clock.advance(KEEP_S + 1)
        await control.bundles.collect()
        assert digests(site) == ["a", "a"], "an attempt that was written down before may still read the old one"


async def test_a_workload_whose_bundle_is_gone_fails_and_says_so(site: Site, control: Control) -> None:
    await send(control, ANN, "a")
    first = await submit(control)
    later = job(bundle="a", depends_on=(Dependency(first.id, Condition.AFTER_ANY),))
    one = await submit(control, later)
    control.bundles._kept.clear()
    await control.workloads.stop(ANN, first.id)
    await site.clock.advance(5)
    failed = site.there(one)
    assert failed.state is State.FAILED
    assert isinstance(failed.reason, StartFailed) and failed.reason.error.startswith("Bundle not found")
