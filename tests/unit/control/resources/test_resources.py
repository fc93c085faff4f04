"""Platform resources: what is declared is in force at once, as a whole or not at all, and outlives a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.world import ANN, ROOT, Site, job, submit

from commonage.control.control import Control
from commonage.control.resources.affected import Impact
from commonage.control.resources.resources import ANY_VERSION, Documents
from commonage.domain.errors import CommonageError, Conflict, Forbidden, InvalidInput, NotFound
from commonage.domain.nodes import MachineKind, NodePoolPolicy
from commonage.domain.reasons import resources as reasons
from commonage.domain.resources import Action, Document, NodePool, Platform, ResourceChange
from commonage.domain.sites import Site as SiteResource
from commonage.domain.tenants import PRIORITY_CLASSES
from commonage.domain.workloads import State
from commonage.testing import factories

pytestmark = pytest.mark.anyio
LAB: Document = {"kind": "Tenant", "name": "commons", "title": "Lab", "nominal": {"gpus": 1}}
GIT = "git:lab/platform@main"


async def apply(control: Control, *documents: Document, **options: Any) -> list[Action]:
    plan = await control.resources.apply(ROOT, Documents(documents, **options))
    return [one.change.action for one in plan.changes]


def exported(control: Control) -> list[Document]:
    return [one.document for one in control.resources.all(ROOT)]


async def test_applied_resources_are_in_force_at_once() -> None:
    site = Site()
    async with site.open() as control:
        await apply(
            control,
            LAB,
            {"kind": "Volume", "name": "data", "source": "/srv/data"},
            {"kind": "PriorityClass", "name": "deadline", "priority": 20},
            {"kind": "Environment", "name": "torch", "requirements": ["torch"]},
            {"kind": "Site", "name": "north", "price_per_gpu_h": 1.5},
            {"kind": "Prices", "name": "default", "gpu_gib_hour": 2, "currency": "EUR"},
        )
        assert control.live_state.snapshot.rules.tenant("commons").quota.nominal.gpu_milli == 1000
        assert control.live_state.snapshot.rules.sites == (SiteResource("north", price_per_gpu_h=1.5),)
        assert [one.name for one in control.settings.volumes] == ["data"]
        assert len(control.settings.priority_classes) == len(PRIORITY_CLASSES) + 1
        assert "torch" in control.catalogue
        assert control.settings.prices.currency == "EUR"


async def test_roles_on_the_platform_are_given_and_taken_while_it_runs() -> None:
    night: Document = {"kind": "PlatformRole", "name": "operator", "users": ["ann"], "groups": ["night"]}
    site = Site()
    async with site.open() as control:
        with pytest.raises(Forbidden):
            control.resources.all(ANN)
        plan = await control.resources.apply(ROOT, Documents([night]))
        assert [one.people for one in plan.changes[0].affected] == [("ann", "group night")]
        assert [one.document for one in control.resources.all(ANN)] == [night]
        with pytest.raises(Forbidden):
            await control.resources.apply(ANN, Documents([{**night, "name": "admin"}]))
    async with site.open() as control:
        assert control.resources.all(ANN)
        await control.resources.delete(ROOT, "PlatformRole", "operator", 1)
        with pytest.raises(Forbidden):
            control.resources.all(ANN)


async def test_resources_are_in_force_again_after_a_restart() -> None:
    site = Site()
    async with site.open() as control:
        await apply(control, LAB)
    async with site.open() as control:
        assert exported(control) == [LAB]
        assert control.live_state.snapshot.rules.tenant("commons").title == "Lab"


async def test_the_settings_file_is_imported_once_and_never_again() -> None:
    site = Site()
    site.declared = {"Tenant": [LAB]}
    async with site.open() as control:
        assert exported(control) == [LAB]
        assert control.resources.ignored == ()
        await control.resources.delete(ROOT, "Tenant", "commons", 1)
    async with site.open() as control:
        assert exported(control) == []
        assert control.resources.ignored == ("tenants",)
    events = [one.reason for one in await site.store.events()]
    assert reasons.ResourcesImported(kind="Tenant", count=1) in events


async def test_invalid_document_changes_nothing_and_names_its_field() -> None:
    site = Site()
    async with site.open() as control:
        await apply(control, LAB)
        bad = {"kind": "Tenant", "name": "b", "nominal": {"memory": "lots"}}
        with pytest.raises(InvalidInput) as caught:
            await apply(control, {**LAB, "title": "Other"}, bad)
        assert caught.value.field == "documents.1.nominal.memory"
        assert exported(control) == [LAB]


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "Tenant", "name": "a", "sites": ["moon"]},
        {"kind": "Tenant", "name": "a", "environments": ["moon"]},
        {"kind": "Volume", "name": "a", "source": "/srv/a", "tenants": ["moon"]},
    ],
)
async def test_resource_that_names_an_unknown_one_is_refused(document: Document) -> None:
    async with Site().open() as control:
        with pytest.raises(InvalidInput, match="'moon' does not exist"):
            await apply(control, document)


async def test_resource_that_another_one_names_cannot_be_deleted() -> None:
    async with Site().open() as control:
        await apply(control, {"kind": "Site", "name": "north"}, {"kind": "Tenant", "name": "a", "sites": ["north"]})
        with pytest.raises(InvalidInput, match="the tenant a: sites: 'north' does not exist"):
            await control.resources.delete(ROOT, "Site", "north", 1)


async def test_a_site_of_some_tenants_is_not_opened_to_all_by_deletion_of_its_resource() -> None:
    async with Site().open() as control:
        of_lab: Document = {"kind": "Site", "name": "local", "tenants": ["commons"]}
        elsewhere: Document = {"kind": "Site", "name": "north", "tenants": ["commons"]}
        await apply(control, LAB, of_lab, elsewhere)
        assert "local" in control.engines
        for refused in (
            control.resources.delete(ROOT, "Site", "local", 1, force=True),
            apply(control, LAB, elsewhere, prune=True),
        ):
            with pytest.raises(Conflict) as caught:
                await refused
            assert caught.value.problem_code == "site-would-open"
        assert not control.settings.rules.sites_of("other").is_everywhere
        await control.resources.delete(ROOT, "Site", "north", 1)  # nothing has joined as this site
        await apply(control, {**of_lab, "tenants": []})
        await control.resources.delete(ROOT, "Site", "local", 2)


async def test_change_of_another_version_is_refused() -> None:
    async with Site().open() as control:
        put = control.resources.put
        first = await put(ROOT, LAB, 0, kind="Tenant", name="commons")
        second = await put(ROOT, {**LAB, "title": "New"}, first.version, kind="Tenant", name="commons")
        for version in (0, 1):
            with pytest.raises(Conflict) as caught:
                await put(ROOT, LAB, version, kind="Tenant", name="commons")
            assert caught.value.problem_code == "version-mismatch"
        deleted = await control.resources.delete(ROOT, "Tenant", "commons", second.version)
        assert deleted.version == 2
        again = await put(ROOT, LAB, 0, kind="Tenant", name="commons")
        assert again.version == 4  # deletion counts, so that an old version never matches again


async def test_plan_of_older_resources_is_not_applied() -> None:
    async with Site().open() as control:
        plan = await control.resources.plan(ROOT, Documents([LAB]))
        await apply(control, {"kind": "Site", "name": "north"})
        with pytest.raises(Conflict, match="changed since the plan"):
            await control.resources.apply(ROOT, Documents([LAB]), plan.revision)


async def test_resource_in_use_is_deleted_only_by_force() -> None:
    async with Site().open() as control:
        await apply(control, {"kind": "Environment", "name": "torch", "requirements": ["torch"]})
        work = await submit(control, job(environment="torch"))
        with pytest.raises(Conflict, match=f"in use by workloads {work.id} of ann") as caught:
            await control.resources.delete(ROOT, "Environment", "torch", ANY_VERSION)
        assert caught.value.problem_code == "resource-in-use"
        await control.resources.delete(ROOT, "Environment", "torch", ANY_VERSION, force=True)
        assert "torch" not in control.catalogue


async def test_plan_shows_fields_and_whom_they_affect() -> None:
    site = Site()
    async with site.open() as control:
        await apply(control, LAB)
        work = await submit(control, job(cpus_milli=2000))
        await site.clock.advance(5)
        assert site.there(work).state is State.RUNNING
        lower = {**LAB, "nominal": {"gpus": 1, "cpus": 1}, "environments": ["notebook"]}
        (planned,) = (await control.resources.plan(ROOT, Documents([lower]))).changes
        assert [(one.path, one.before, one.after) for one in planned.change.fields] == [
            ("environments", None, ["notebook"]),
            ("nominal.cpus", None, 1),
        ]
        assert [one.reason for one in planned.affected] == [
            reasons.EnvironmentNotAllowed(tenant="commons", environment="base"),
            reasons.QuotaBelowAllocation(tenant="commons", resource="cpus_milli", quota=1000, allocated=2000),
        ]
        assert [one.id for one in planned.affected[0].workloads] == [work.id]
        assert planned.affected[0].people == ("ann",)


async def test_nodes_of_a_deleted_pool_are_those_that_the_control_plane_named_not_those_that_say_so() -> None:
    pool = NodePool(NodePoolPolicy("burst", MachineKind(8_000, 32_768)), "cloud", "small", "debian")
    for name, labels, affected in (("burst-0000a1", (), 1), ("liar", (("node-pool", "burst"),), 0)):
        site = Site([factories.node(name, labels=labels)])
        async with site.open() as control:
            await submit(control)
            await site.clock.advance(5)
            impact = Impact(control.live_state, Platform(node_pools=(pool,)), Platform())
            found = impact.of(ResourceChange("NodePool", "burst", Action.DELETE))
            assert [one.reason for one in found] == [reasons.NodePoolGone(node_pool="burst")] * affected


async def test_plan_names_people_whose_roles_change() -> None:
    async with Site().open() as control:
        ann, staff = {"user": "ann", "role": "manager"}, {"group": "staff", "role": "viewer"}
        await apply(control, {**LAB, "members": [ann, staff]})
        demoted = Documents([{**LAB, "members": [{**ann, "role": "viewer"}]}])
        (planned,) = (await control.resources.plan(ROOT, demoted)).changes
        assert [(one.reason, one.people) for one in planned.affected] == [
            (reasons.RolesDiffer(tenant="commons"), ("ann", "group staff"))
        ]
        assert control.settings.rules.tenants[0].members[0].subject == "ann"


async def test_managed_resources_change_only_at_their_source() -> None:
    async with Site().open() as control:
        other: Document = {"kind": "Site", "name": "north"}
        await apply(control, other)
        await apply(control, LAB, {"kind": "Volume", "name": "data", "source": "/srv/data"}, managed_by=GIT)
        with pytest.raises(Conflict, match=f"Tenant commons is managed by {GIT}"):
            await control.resources.put(ROOT, LAB, ANY_VERSION, kind="Tenant", name="commons")
        with pytest.raises(Conflict, match="is managed by"):
            await apply(control, {**LAB, "title": "Mine"})
        # The source prunes what it declared, and nothing else.
        assert await apply(control, LAB, managed_by=GIT, prune=True) == [Action.UNCHANGED, Action.DELETE]
        assert exported(control) == [other, LAB]
        assert await apply(control, LAB, take_over=True) == [Action.CHANGE]
        assert control.resources.one(ROOT, "Tenant", "commons").managed_by == ""


async def test_each_change_is_an_event_with_its_author() -> None:
    site = Site()
    async with site.open() as control:
        await apply(control, LAB)
        await apply(control, {**LAB, "weight": 3})
        await control.resources.delete(ROOT, "Tenant", "commons", ANY_VERSION)
    assert [one.reason for one in await site.store.events()][-3:] == [
        reasons.ResourceCreated(by="root", kind="Tenant", name="commons"),
        reasons.ResourceChanged(by="root", kind="Tenant", name="commons", fields=("weight",)),
        reasons.ResourceDeleted(by="root", kind="Tenant", name="commons"),
    ]


async def test_resources_are_for_admins() -> None:
    async with Site().open() as control:
        with pytest.raises(Forbidden):
            control.resources.all(ANN)
        with pytest.raises(Forbidden):
            await control.resources.apply(ANN, Documents([LAB]))
        with pytest.raises(NotFound):
            control.resources.one(ROOT, "Tenant", "nowhere")
        with pytest.raises(NotFound):
            control.resources.all(ROOT, "Tenants")


names = st.sampled_from(["a", "b", "c"])
bounds = st.fixed_dictionaries(
    {}, optional={"gpus": st.sampled_from([0, 1, 2.5]), "memory": st.sampled_from(["1GiB", "768MiB", 0])}
)
documents = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("Tenant"), "name": names},
        optional={"title": st.text(max_size=5), "weight": st.floats(0.5, 9), "nominal": bounds, "per_user": bounds},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("Volume"), "name": names, "type": st.just("scratch")},
        optional={"size": st.sampled_from(["5GiB", "100MiB"]), "always": st.booleans()},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("Site"), "name": names}, optional={"order": st.integers(-5, 5), "price_per_gpu_h": st.just(1)}
    ),
    st.fixed_dictionaries({"kind": st.just("Tenant"), "name": names, "sites": st.just(["a"])}),
)
sets = st.lists(documents, max_size=6, unique_by=lambda one: (one["kind"], one["name"]))


@settings(max_examples=25, deadline=None)
@given(first=sets, second=sets, prune=st.booleans())
async def test_apply_is_atomic_and_repeatable_and_export_is_its_inverse(
    first: list[Document], second: list[Document], prune: bool
) -> None:
    async with Site(samples_itself=False).open() as control:
        for given_ in (first, second):
            before = exported(control)
            wanted = Documents(given_, prune=prune)
            try:
                await control.resources.apply(ROOT, wanted)
            except CommonageError:
                assert exported(control) == before
            else:
                assert (await control.resources.plan(ROOT, wanted)).is_empty
            revision = control.resources.revision
            assert (await control.resources.plan(ROOT, Documents(exported(control), prune=True))).is_empty
            await control.resources.apply(ROOT, Documents(exported(control), prune=True))
            assert control.resources.revision == revision
