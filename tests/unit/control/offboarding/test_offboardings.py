"""Users and tenants are renamed and removed as planned; a kill at any point changes nothing about the result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.unit.control.offboarding.offboarding_world import Killed, World, remove, rename
from tests.unit.control.world import ANN, BOB, FOREVER, ROOT, job, submit

from commonage.control.control import Control
from commonage.control.offboarding.offboardings import PlanRefused
from commonage.control.resources.resources import ANY_VERSION, Documents
from commonage.control.workloads.cron_jobs import NewCronJob
from commonage.domain.cron_jobs import CronJob, CronRule
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from commonage.domain.offboarding import Change, DataChoice, Offboarding, Subject, Wanted, WorkChoice
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons import offboarding as reasons
from commonage.domain.reasons.cron_jobs import CronJobHandedOver, CronJobRemoved
from commonage.domain.requests import Request
from commonage.domain.resources import Document
from commonage.domain.tenants import Reservation
from commonage.domain.workloads import State, Workload
from commonage.ports.identity import Account
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
OPTICS = "optics"


def kinds(found: Sequence[Reason]) -> list[type[Reason]]:
    return [type(one) for one in found]


async def with_work(world: World, control: Control) -> tuple[Workload, Workload, Workload]:
    """One that ended, one that runs and one that waits, of ann in optics."""
    await world.declare(control)
    world.site.engine.default = Behaviour(lasts_s=0.2)
    ended = await submit(control, job("true", tenant=OPTICS, key="k"))
    await world.site.clock.advance(5)
    world.site.engine.default = FOREVER
    running = await submit(control, job("sleep", tenant=OPTICS, key="r"))
    await world.site.clock.advance(2)
    waiting = await submit(control, job("later", tenant=OPTICS, key="w", cpus_milli=7_500))
    await world.site.clock.advance(2)
    assert [world.site.there(one).state for one in (ended, running)] == [State.SUCCEEDED, State.RUNNING]
    return ended, running, waiting


async def test_a_plan_names_everything_that_belongs_to_the_user() -> None:
    world = World()
    async with world.site.open() as control:
        _, running, waiting = await with_work(world, control)
        control.catalogue.put([make.image("optics/torch:1", OPTICS, by="ann")])
        plan = await control.offboardings.plan(ROOT, remove())
        assert plan.obstacles == ()
        assert kinds(plan.items) == [
            reasons.WorkloadsStop, reasons.TokensRevoked, reasons.JoinTokensStay, reasons.AccountRemoved,
            reasons.FolderArchived, reasons.RolesEnd, reasons.ImagesStay, reasons.UsageStays, reasons.NameRetires,
        ]  # fmt: skip
        assert plan.items[0] == reasons.WorkloadsStop(workloads=(running.id, waiting.id))
        assert plan.items[1] == reasons.TokensRevoked(count=2)


async def test_a_removed_user_leaves_usage_and_an_archive_and_nothing_else() -> None:
    world = World()
    async with world.site.open() as control:
        work = await with_work(world, control)
        done = await world.begin(control, remove())
        done = await world.until_done(control)
        assert [world.site.there(one).state for one in work] == [State.SUCCEEDED, State.STOPPED, State.STOPPED]
        assert world.hub.token_ends == ["ann"]
        assert "ann" not in world.hub.users
        assert list(world.homes.there) == ["/homes/bob"]
        assert list(world.homes.packed.values()) == ["thesis"]
        assert done.id in next(iter(world.homes.packed))
        members = next(one for one in control.settings.rules.tenants if one.name == OPTICS).members
        assert [one.subject for one in members] == ["bob"]
        usage = await control.store.usage(since=0, until=world.site.clock.now(), by="owner")
        assert [one.subject for one in usage] == ["ann"]
        happened = [one.reason for one in await control.store.events()]
        steps = [one.step for one in happened if isinstance(one, reasons.OffboardingStep)]
        assert steps == list(remove().steps)


async def test_a_retired_name_is_refused_until_an_admin_releases_it() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        begun = await world.begin(control, remove())
        await world.until_done(control)
        world.hub.users["ann"] = replace(world.hub.users["bob"], name="ann")  # somebody signs up
        with pytest.raises(Forbidden) as refused:
            control.names.admit(ANN)
        assert refused.value.problem_code == "name-retired"
        with pytest.raises(Forbidden):
            await submit(control)
    async with world.site.open() as control:
        with pytest.raises(Forbidden):
            control.names.admit(ANN)
        await control.offboardings.release(ROOT, begun.id)
        control.names.admit(ANN)
        await submit(control)


async def test_a_renamed_user_keeps_work_home_roles_usage_and_keys() -> None:
    world = World()
    async with world.site.open() as control:
        ended, running, waiting = await with_work(world, control)
        before = await control.store.usage(since=0, until=world.site.clock.now(), by="owner")
        await world.begin(control, rename(workloads=WorkChoice.HAND_OVER))
        await world.until_done(control)
        await world.site.clock.advance(5)
        assert {world.site.there(one).spec.owner for one in (ended, running, waiting)} == {"anna"}
        assert world.site.there(running).state is State.RUNNING, "it was requeued and started again"
        assert world.site.there(running).attempts == 2
        assert world.homes.there["/homes/anna"] == "thesis"
        assert world.hub.users["anna"].tokens == 2
        assert world.hub.members[OPTICS] == {"anna", "eve"}
        members = next(one for one in control.settings.rules.tenants if one.name == OPTICS).members
        assert [one.subject for one in members] == ["anna", "bob"]
        usage = await control.store.usage(since=0, until=world.site.clock.now(), by="owner")
        assert [one.subject for one in usage] == ["anna"]
        assert usage[0].cpu_h >= before[0].cpu_h > 0
        assert await control.store.workload_by_key("anna", "k") is not None
        assert await control.store.workload_by_key("anna", "w") is not None
        assert await control.store.workload_by_key("ann", "w") is None
        debts = control.live_state.snapshot.usage
        now = world.site.clock.now()
        assert debts.debt(OPTICS, "anna", now) > 0 == debts.debt(OPTICS, "ann", now)


async def test_work_that_waits_does_not_start_while_its_owner_is_renamed() -> None:
    world = World()
    async with world.site.open() as control:
        _, running, waiting = await with_work(world, control)
        await world.begin(control, rename(workloads=WorkChoice.FINISH))
        await world.site.clock.advance(5)
        assert world.site.there(running).state is State.RUNNING
        held = world.site.there(waiting)
        assert (held.state, type(held.reason)) == (State.HELD, reasons.WaitsForNewName)
        control.names.admit(ANN)  # looks on
        with pytest.raises(Forbidden):
            await submit(control)
        with pytest.raises(Forbidden):
            control.names.admit(Principal("anna", ANN.scopes))
        world.site.engine.end(world.site.there(running).attempt.id)  # type: ignore[union-attr]
        await world.until_done(control)
        await world.site.clock.advance(5)
        assert (world.site.there(waiting).spec.owner, world.site.there(waiting).state) == ("anna", State.RUNNING)


async def test_work_is_handed_over_to_an_heir_and_old_usage_stays() -> None:
    world = World()
    async with world.site.open() as control:
        ended, running, waiting = await with_work(world, control)
        wanted = remove(heir="bob", workloads=WorkChoice.HAND_OVER, data=DataChoice.HAND_OVER)
        await world.begin(control, wanted)
        await world.until_done(control)
        await world.site.clock.advance(60)
        assert world.site.there(ended).spec.owner == "ann"
        assert {world.site.there(one).spec.owner for one in (running, waiting)} == {"bob"}
        assert world.site.there(running).state is State.RUNNING
        assert world.homes.there == {"/homes/bob": "paper", "/homes/bob/from-ann": "thesis"}
        usage = await control.store.usage(since=0, until=world.site.clock.now(), by="owner")
        assert [one.subject for one in usage] == ["ann", "bob"]


async def test_an_heir_who_may_not_have_the_work_is_an_obstacle() -> None:
    world = World()
    async with world.site.open() as control:
        await with_work(world, control)
        world.hub.users["eva"] = replace(world.hub.users["bob"], name="eva")
        for heir, obstacle in (("eva", reasons.HeirNotMember), ("nobody", reasons.HeirUnknown)):
            wanted = remove(heir=heir, workloads=WorkChoice.HAND_OVER)
            plan = await control.offboardings.plan(ROOT, wanted)
            assert kinds(plan.obstacles) == [obstacle]
            with pytest.raises(PlanRefused):
                await control.offboardings.begin(ROOT, wanted, plan.version)
        assert control.names.all() == []


async def test_a_renamed_tenant_keeps_quota_volumes_groups_reservations_images_and_history() -> None:
    world = World()
    async with world.site.open() as control:
        ended, running, waiting = await with_work(world, control)
        world.homes.there["/data/optics"] = "spectra"
        control.catalogue.put([make.image("optics/torch:1", OPTICS, by="ann")])
        reserved = Reservation("r1", OPTICS, 1e12, 1e12 + 60, Request(1000, 1024))
        await control.reservations.revise("root", reserved, reserved)
        await world.begin(control, rename(OPTICS, "photonics", Subject.TENANT, workloads=WorkChoice.HAND_OVER))
        await world.until_done(control)
        await world.site.clock.advance(5)
        assert {world.site.there(one).spec.tenant for one in (ended, running, waiting)} == {"photonics"}
        assert world.hub.members == {"photonics": {"ann", "eve"}}
        tenants = {one.name: one for one in control.settings.rules.tenants}
        assert set(tenants) == {"photonics", "chemistry"}
        assert tenants["photonics"].quota.nominal.gpu_milli == 1000
        assert [one.subject for one in tenants["chemistry"].members] == ["photonics"]
        volumes = {one.name: one.tenants for one in control.settings.volumes}
        assert volumes == {"lab": ("photonics",), "shared": ("chemistry", "photonics")}
        assert [one.tenant for one in control.reservations.rules.reservations] == ["photonics"]
        assert [one.tenant for one in control.catalogue.images()] == ["photonics"]
        assert world.homes.there["/data/photonics"] == "spectra"
        usage = await control.store.usage(since=0, until=world.site.clock.now(), by="tenant")
        assert [one.subject for one in usage] == ["photonics"]


async def test_a_removed_tenant_opens_its_volumes_to_nobody_and_its_name_stays_retired() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        control.catalogue.put([make.image("optics/torch:1", OPTICS, by="ann")])
        begun = await world.begin(control, remove(OPTICS, Subject.TENANT, data=DataChoice.KEEP))
        await world.until_done(control)
        assert {one.name: one.tenants for one in control.settings.volumes} == {"shared": ("chemistry",)}
        assert control.catalogue.images() == []
        assert OPTICS not in world.hub.members
        again = Documents([{"kind": "Tenant", "name": OPTICS}])
        with pytest.raises(Conflict) as refused:
            await control.resources.apply(ROOT, again)
        assert refused.value.problem_code == "name-not-released"
        await control.offboardings.release(ROOT, begun.id)
        await control.resources.apply(ROOT, again)


async def test_resources_in_git_are_an_obstacle() -> None:
    world = World()
    async with world.site.open() as control:
        lab = {"kind": "Tenant", "name": "lab", "members": [{"user": "ann", "role": "member"}]}
        await control.resources.apply(ROOT, Documents([lab], managed_by="git:x@main"))
        for wanted in (remove(), rename(), remove("lab", Subject.TENANT)):
            plan = await control.offboardings.plan(ROOT, wanted)
            assert kinds(plan.obstacles) == [reasons.ManagedByGit]
            with pytest.raises(PlanRefused):
                await control.offboardings.begin(ROOT, wanted, plan.version)


async def test_names_that_are_or_were_in_use_are_obstacles_of_a_rename() -> None:
    world = World()
    async with world.site.open() as control:
        await with_work(world, control)
        for to in ("bob", "ann-before"):
            if to == "ann-before":
                world.homes.there["/homes/ann-before"] = "left"
            plan = await control.offboardings.plan(ROOT, rename(to=to))
            assert plan.obstacles != ()
        plan = await control.offboardings.plan(ROOT, rename(to="ann-before"))
        assert kinds(plan.obstacles) == [reasons.FolderTaken]
        plan = await control.offboardings.plan(ROOT, rename(OPTICS, "chemistry", Subject.TENANT))
        assert kinds(plan.obstacles) == [reasons.NameTaken]


async def test_what_changed_since_the_plan_is_refused() -> None:
    world = World()
    async with world.site.open() as control:
        await with_work(world, control)
        plan = await control.offboardings.plan(ROOT, remove())
        new = await submit(control, job("new", tenant=OPTICS))
        with pytest.raises(PlanRefused) as refused:
            await control.offboardings.begin(ROOT, remove(), plan.version)
        assert refused.value.problem_code == "version-mismatch"
        assert not world.site.there(new).state.is_terminal
        await world.begin(control, remove())


async def test_the_same_request_again_returns_the_first() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        begun = await world.begin(control, remove())
        assert (await control.offboardings.begin(ROOT, remove(), "any")).id == begun.id
        with pytest.raises(Conflict):
            await control.offboardings.begin(ROOT, remove(data=DataChoice.KEEP), "any")
        await world.until_done(control)
        assert (await control.offboardings.begin(ROOT, remove(), "any")).id == begun.id
        assert len(control.names.all()) == 1


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (rename(to=""), InvalidInput),
        (rename(to="ann"), InvalidInput),
        (rename(to="Not A Name"), InvalidInput),
        (remove(data=DataChoice.HAND_OVER), InvalidInput),
        (remove(heir="ann"), InvalidInput),
        (remove("root"), InvalidInput),
        (remove("commons", Subject.TENANT), InvalidInput),
        (remove("nobody"), NotFound),
        (remove("nothing", Subject.TENANT), NotFound),
    ],
)
async def test_requests_without_a_meaning_are_refused(wanted: Wanted, error: type[Exception]) -> None:
    world = World()
    async with world.site.open() as control:
        with pytest.raises(error):
            await control.offboardings.plan(ROOT, wanted)


async def test_servers_that_the_hub_still_has_are_stopped_before_their_user_changes() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        world.hub.users["ann"] = Account("ann", sessions=("", "second"))
        await world.begin(control, rename())
        await world.until_done(control)
        assert world.hub.users["anna"].sessions == ()


async def test_an_heir_stays_until_everything_is_handed_over() -> None:
    world = World()
    async with world.site.open() as control:
        _, running, _ = await with_work(world, control)
        await world.begin(control, remove(heir="bob", workloads=WorkChoice.FINISH))
        with pytest.raises(Conflict) as refused:
            await control.offboardings.plan(ROOT, remove("bob"))
        assert refused.value.problem_code == "offboarding-pending"
        assert world.site.there(running).state is State.RUNNING


@pytest.mark.parametrize(
    ("wanted", "item", "users", "groups"),
    [
        (rename(), reasons.PlatformRolesMove(roles=("operator",), receiver="anna"), ["anna", "bob"], [OPTICS]),
        (remove(), reasons.PlatformRolesEnd(roles=("operator",)), ["bob"], [OPTICS]),
        (remove(OPTICS, Subject.TENANT), reasons.PlatformRolesEnd(roles=("operator",)), ["ann", "bob"], []),
    ],
)
async def test_roles_of_the_platform_follow(wanted: Wanted, item: Reason, users: list[str], groups: list[str]) -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        operators = {"kind": "PlatformRole", "name": "operator", "users": ["ann", "bob"], "groups": [OPTICS]}
        await control.resources.apply(ROOT, Documents([operators]))
        plan = await control.offboardings.plan(ROOT, wanted)
        assert item in plan.items
        await world.begin(control, wanted)
        await world.until_done(control)
        found = control.resources.one(ROOT, "PlatformRole", "operator").fields
        assert (found.get("users", []), found.get("groups", [])) == (users, groups)


async def test_sites_of_a_tenant_go_to_the_new_name_the_heir_or_the_other_tenants() -> None:
    for wanted, left in (
        (rename(OPTICS, "photonics", Subject.TENANT), ("chemistry", "photonics")),
        (remove(OPTICS, Subject.TENANT, heir="chemistry"), ("chemistry",)),
        (remove(OPTICS, Subject.TENANT), ("chemistry",)),
    ):
        world = World()
        async with world.site.open() as control:
            await world.declare(control)
            await control.resources.apply(
                ROOT, Documents([{"kind": "Site", "name": "local", "tenants": ["chemistry", OPTICS]}])
            )
            await world.begin(control, wanted)
            await world.until_done(control)
            assert [one.tenants for one in control.settings.rules.sites] == [left]


async def test_a_tenant_is_not_removed_while_that_would_open_its_site_to_all() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        await control.resources.apply(ROOT, Documents([{"kind": "Site", "name": "local", "tenants": [OPTICS]}]))
        plan = await control.offboardings.plan(ROOT, remove(OPTICS, Subject.TENANT))
        assert plan.obstacles == (reasons.SiteOfTenantOnly(site="local", tenant=OPTICS),)
        await world.begin(control, remove(OPTICS, Subject.TENANT, heir="chemistry"))
        await world.until_done(control)
        assert [one.tenants for one in control.settings.rules.sites] == [("chemistry",)]


async def test_names_of_the_server_are_obstacles() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        plan = await control.offboardings.plan(ROOT, rename("bob", "hub"))
        assert kinds(plan.obstacles) == [reasons.NameTaken]


async def nightly(control: Control, who: Principal = ANN, name: str = "nightly", **fields: Any) -> CronJob:
    wanted = NewCronJob(job("true", name=name, tenant=OPTICS, **fields), CronRule("* * * * *"))
    return await control.cron_jobs.create(who, wanted)


@pytest.mark.parametrize("choice", WorkChoice)
async def test_a_renamed_user_keeps_cron_jobs_which_fire_again_afterwards(choice: WorkChoice) -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        world.site.engine.default = Behaviour(lasts_s=1)
        made = await nightly(control)
        plan = await control.offboardings.plan(ROOT, rename(workloads=choice))
        assert reasons.CronJobsMove(cron_jobs=("nightly",), receiver="anna") in plan.items
        await world.begin(control, rename(workloads=choice))
        await world.until_done(control)
        (found,) = control.cron_jobs.visible(ROOT)
        assert (found.id, found.owner, found.rule) == (made.id, "anna", made.rule)
        assert await control.store.cron_jobs() == [found]
        await world.site.clock.advance(61)
        assert [one.spec.owner for one in world.site.all() if one.spec.cron_job == made.id] == ["anna"]
        happened = [one.reason for one in await control.store.events()]
        assert CronJobHandedOver(by="root", id=made.id, name="nightly", owner="anna", tenant=OPTICS) in happened


async def test_a_cron_job_does_not_fire_while_its_owner_is_being_changed() -> None:
    world = World()
    async with world.site.open() as control:
        _, running, _ = await with_work(world, control)
        made = await nightly(control)
        await world.begin(control, rename(workloads=WorkChoice.FINISH))
        await world.site.clock.advance(180)
        assert [one for one in world.site.all() if one.spec.cron_job] == []
        waits = control.cron_jobs.waiting(made.id)
        assert waits == reasons.NameRetired(subject="user", name="ann", to="anna", pending=True)
        world.site.engine.default = Behaviour(lasts_s=1)
        world.site.engine.end(world.site.there(running).attempt.id)  # type: ignore[union-attr]  # it runs
        await world.until_done(control)
        await world.site.clock.advance(10)
        (run,) = [one for one in world.site.all() if one.spec.cron_job]
        assert run.spec.owner == "anna", "the newest time that was missed"


@pytest.mark.parametrize("choice", [WorkChoice.STOP, WorkChoice.FINISH])
async def test_cron_jobs_of_a_removed_user_are_removed(choice: WorkChoice) -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        made, other = await nightly(control), await nightly(control, BOB)
        plan = await control.offboardings.plan(ROOT, remove(workloads=choice))
        assert reasons.CronJobsRemoved(cron_jobs=("nightly",)) in plan.items
        await world.begin(control, remove(workloads=choice))
        await world.until_done(control)
        assert [one.id for one in control.cron_jobs.visible(ROOT)] == [other.id]
        assert await control.store.cron_jobs() == [other]
        happened = [one.reason for one in await control.store.events()]
        assert CronJobRemoved(by="root", id=made.id, name="nightly") in happened


async def test_cron_jobs_are_handed_over_to_an_heir_with_the_roles_of_the_heir() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        world.hub.members["lasers"] = {"bob"}
        made = await nightly(control, replace(ANN, groups=("students",)))
        wanted = remove(heir="bob", workloads=WorkChoice.HAND_OVER)
        plan = await control.offboardings.plan(ROOT, wanted)
        assert reasons.CronJobsMove(cron_jobs=("nightly",), receiver="bob") in plan.items
        await world.begin(control, wanted)
        await world.until_done(control)
        (found,) = control.cron_jobs.visible(BOB)
        assert (found.id, found.owner, found.groups, found.of_admin) == (made.id, "bob", ("lasers",), False)


async def test_an_heir_with_a_cron_job_of_the_same_name_or_no_role_is_an_obstacle() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        await nightly(control)
        await nightly(control, BOB)
        world.hub.users["eva"] = replace(world.hub.users["bob"], name="eva")
        for heir, obstacle in (
            ("bob", reasons.HeirHasCronJob(name="bob", cron_jobs=("nightly",))),
            ("eva", reasons.HeirNotMember(name="eva", tenants=(OPTICS,))),
        ):
            plan = await control.offboardings.plan(ROOT, remove(heir=heir, workloads=WorkChoice.HAND_OVER))
            assert plan.obstacles == (obstacle,)


async def test_cron_jobs_follow_a_renamed_tenant_and_end_with_a_removed_one() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        made = await nightly(control, replace(ANN, groups=(OPTICS, "staff")))
        renamed = rename(OPTICS, "photonics", Subject.TENANT)
        plan = await control.offboardings.plan(ROOT, renamed)
        assert reasons.CronJobsMove(cron_jobs=("nightly of ann",), receiver="photonics") in plan.items
        await world.begin(control, renamed)
        await world.until_done(control)
        (found,) = control.cron_jobs.visible(ROOT)
        assert (found.id, found.tenant, found.groups) == (made.id, "photonics", ("photonics", "staff"))
        await world.begin(control, remove("photonics", Subject.TENANT))
        await world.until_done(control)
        assert control.cron_jobs.visible(ROOT) == []


async def test_only_admins_change_names() -> None:
    world = World()
    async with world.site.open() as control:
        for call in (
            lambda: control.offboardings.plan(BOB, remove()),
            lambda: control.offboardings.begin(BOB, remove(), ""),
            lambda: control.offboardings.users(BOB),
            lambda: control.offboardings.release(BOB, "o1"),
        ):
            with pytest.raises(Forbidden):
                await call()  # type: ignore[no-untyped-call]


async def test_a_hub_that_is_away_is_asked_again_and_the_error_shows() -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        await world.begin(control, remove())
        world.hub.away = True
        await world.site.clock.advance(20)
        assert control.names.all()[0].last_error == "the hub does not answer now"
        world.hub.away = False
        await world.until_done(control)
        assert control.names.all()[0].last_error == ""


# --- kills ------------------------------------------------------------------------------------------------------------

CHANGES = {
    "rename a user": rename(workloads=WorkChoice.HAND_OVER),
    "remove a user": remove(),
    "hand a user over": remove(heir="bob", workloads=WorkChoice.HAND_OVER, data=DataChoice.HAND_OVER),
    "rename a tenant": rename(OPTICS, "photonics", Subject.TENANT, workloads=WorkChoice.HAND_OVER),
    "remove a tenant": remove(OPTICS, Subject.TENANT),
}


async def prepared(world: World) -> None:
    """Work, an image, a reservation and folders; the control plane is closed again."""
    async with world.site.open() as control:
        await with_work(world, control)
        world.homes.there["/data/optics"] = "spectra"
        await control.images.revise("root", make.image("optics/torch:1", OPTICS, by="ann"))
        far = NewCronJob(job("true", name="yearly", tenant=OPTICS), CronRule("@yearly"))
        await control.cron_jobs.create(ANN, far)
        reserved = Reservation("r1", OPTICS, 1e12, 1e12 + 60, Request(1000, 1024), owner="ann")
        await control.reservations.revise("root", reserved, reserved)


async def finished(world: World, wanted: Wanted) -> dict[str, Any]:
    """Start or continue it until it is done. Returns the remaining state, without times and ids of this change."""
    async with world.site.open() as control:
        if not control.names.all():
            await world.begin(control, wanted)
        done = await world.until_done(control)
        await world.site.clock.advance(30)
        assert (done.wanted, done.done, done.last_error) == (wanted, wanted.steps, "")
    shelf = world.site.store.shelf
    reached = [one.reason for one in shelf.events if isinstance(one.reason, reasons.OffboardingStep)]
    assert [one.step for one in reached] == list(wanted.steps), "each step is done, and said once"
    return {
        "workloads": {key: (one.spec.owner, one.spec.tenant, one.state) for key, one in shelf.workloads.items()},
        "payers": dict(shelf.payers),
        "keys": dict(shelf.keys),
        "resources": {key: one.body for key, one in shelf.resources.items()},
        "images": {key: (one.by, one.tenant, one.removed is None) for key, one in shelf.images.items()},
        "reservations": {key: (one.owner, one.tenant) for key, one in shelf.reservations.items()},
        "cron_jobs": {key: (one.owner, one.tenant) for key, one in shelf.cron_jobs.items()},
        "homes": dict(world.homes.there),
        "packed": sorted(world.homes.packed.values()),
        "users": {name: one.tokens for name, one in world.hub.users.items()},
        "groups": {name: sorted(users) for name, users in world.hub.members.items()},
    }


async def killed_at(world: World, wanted: Wanted, at: int) -> bool:
    """Start it, and kill the process at its n-th effect; False if it was done before."""
    world.killer.seen, world.killer.at = 0, at
    try:
        async with world.site.open() as control:
            with suppress(Killed, Unavailable):
                await world.begin(control, wanted)
                await world.until_done(control)
    except (BaseExceptionGroup, AssertionError, Killed):
        pass
    reached, world.killer.at = world.killer.at is None, None
    return reached


@pytest.mark.parametrize("change", CHANGES)
async def test_a_kill_at_any_effect_changes_nothing_about_the_result(change: str) -> None:
    wanted, whole = CHANGES[change], World()
    await prepared(whole)
    expected = await finished(whole, wanted)
    for at in range(1, 200):
        world = World()
        await prepared(world)
        if not await killed_at(world, wanted, at):
            break
        assert await finished(world, wanted) == expected, f"killed at {at}"
    assert at > len(wanted.steps) * 2, "there was a kill in and between all steps"


def test_steps_are_in_order_and_the_last_ends_it() -> None:
    wanted = rename()
    current = Offboarding("o1", wanted, "v", "root", 1.0)
    for step in wanted.steps:
        assert current.next_step is step and current.is_pending
        current = current.after(step, 2.0)
    assert (current.next_step, current.ended_at) == (None, 2.0)


async def test_a_tenant_is_deleted_as_a_resource_only_while_it_is_empty() -> None:
    world = World()
    async with world.site.open() as control:
        await control.resources.apply(ROOT, Documents([{"kind": "Tenant", "name": OPTICS}]))

        async def left() -> dict[str, Any]:
            with pytest.raises(Conflict) as refused:
                await control.resources.delete(ROOT, "Tenant", OPTICS, ANY_VERSION, force=True)
            assert refused.value.problem_code == "tenant-not-empty"
            found = refused.value.reason
            assert isinstance(found, reasons.TenantNotEmpty)
            return {name: number for name, number in asdict(found).items() if number and name != "tenant"}

        assert await left() == {"members": 2}  # those of the group at the hub
        world.hub.members.clear()
        world.homes.there["/data/optics"] = "measurements"
        assert await left() == {"folders": 1}
        del world.homes.there["/data/optics"]
        world.homes.claims = {"cluster/home-ann": OPTICS, "cluster/home-bob": OPTICS}
        assert await left() == {"folders": 2}
        world.homes.claims = {}
        work = await submit(control, job(tenant=OPTICS), principal=ROOT)
        assert await left() == {"workloads": 1}
        await control.workloads.stop(ROOT, work.id)
        await world.site.clock.advance(5)
        await control.resources.delete(ROOT, "Tenant", OPTICS, ANY_VERSION)
        assert control.resources.of_kind("Tenant") == []


@pytest.mark.parametrize("source", ["", "git:lab/platform@main"])
async def test_documents_without_a_tenant_delete_it_only_while_it_has_no_work_and_no_folders(source: str) -> None:
    world = World()
    members = [{"user": ANN.name, "role": "member"}]
    others: list[Document] = [{"kind": "Site", "name": "north"}]
    async with world.site.open() as control:
        lab = {"kind": "Tenant", "name": OPTICS, "members": members}
        await control.resources.apply(ROOT, Documents([lab], managed_by=source))
        pruning = Documents(others, managed_by=source, prune=True)

        async def left() -> dict[str, Any]:
            plan = await control.resources.plan(ROOT, pruning)
            [shown] = [one.refusal for one in plan.changes if one.refusal is not None]
            with pytest.raises(Conflict) as refused:
                await control.resources.apply(ROOT, pruning, plan.revision)
            assert refused.value.problem_code == "tenant-not-empty"
            assert refused.value.reason == shown
            assert control.resources.of_kind("Site") == [], "all documents, or none"
            assert isinstance(shown, reasons.TenantNotEmpty)
            assert shown.managed_by == source
            return {name: number for name, number in asdict(shown).items() if number and isinstance(number, int)}

        world.homes.there["/data/optics"] = "measurements"
        assert await left() == {"folders": 1}
        del world.homes.there["/data/optics"]
        world.homes.claims = {"cluster/home-ann": OPTICS, "cluster/home-bob": OPTICS}
        assert await left() == {"folders": 2}
        world.homes.claims = {}
        work = await submit(control, job(tenant=OPTICS), principal=ROOT)
        assert await left() == {"workloads": 1}
        await control.workloads.stop(ROOT, work.id)
        await world.site.clock.advance(5)
        await control.resources.apply(ROOT, pruning)
        assert control.resources.of_kind("Tenant") == [], "members go with the document that declares them"


async def test_tenant_that_git_gave_up_is_taken_over_and_removed_by_a_plan() -> None:
    world, git = World(), "git:lab/platform@main"
    others: list[Document] = [{"kind": "Site", "name": "north"}]
    lab: Document = {"kind": "Tenant", "name": OPTICS}
    async with world.site.open() as control:
        await control.resources.apply(ROOT, Documents([lab], managed_by=git))
        world.homes.there["/data/optics"] = "measurements"
        await control.resources.apply(ROOT, Documents([lab], take_over=True))
        await control.resources.apply(ROOT, Documents(others, managed_by=git, prune=True))
        assert [one.name for one in control.resources.of_kind("Tenant")] == [OPTICS]
        await world.begin(control, Wanted(Subject.TENANT, Change.REMOVE, OPTICS))
        await world.until_done(control)
        assert control.resources.of_kind("Tenant") == []
        assert "/data/optics" not in world.homes.there


@pytest.mark.parametrize(("wanted", "to"), [(remove(), ""), (remove(OPTICS, Subject.TENANT), ""), (rename(), "anna")])
async def test_plan_names_the_claims_of_a_cluster_that_stay(wanted: Wanted, to: str) -> None:
    world = World()
    async with world.site.open() as control:
        await world.declare(control)
        world.homes.claims = {"cluster/home-x": wanted.name, "cluster/home-y": "another"}
        plan = await control.offboardings.plan(ROOT, wanted)
        [stays] = [one for one in plan.items if isinstance(one, reasons.ClaimsStay)]
        assert stays == reasons.ClaimsStay(claims=("cluster/home-x",), to=to)
