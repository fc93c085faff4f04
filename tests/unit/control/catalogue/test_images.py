"""Images in the catalogue: who may register and remove them, who sees them, what becomes of the work in them."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.control.world import ROOT, SPAWNER, USER, Site, job, submit

from commonage.control.catalogue.catalogue import MAX_REMOVED, Catalogue
from commonage.control.catalogue.images import MAX_OF_TENANT
from commonage.control.control import Control
from commonage.control.queries.workloads import StateDetails
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import CommonageError, Conflict, Forbidden, InvalidInput, NotFound
from commonage.domain.images import EnvironmentState, Image, Kernel, Package, Removal
from commonage.domain.nodes import NodeReport
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.attempts import EnvironmentFailed, OnNodes, PreparingEnvironment, PullingImage
from commonage.domain.reasons.notes import ImageRegistered
from commonage.domain.reasons.refusals import EnvironmentNotOffered
from commonage.domain.reasons.waiting import EnvironmentNotInImage, ImageRemoved
from commonage.domain.requests import parse_gpus
from commonage.domain.sites import Site as Place
from commonage.domain.statuses import Phase, Status
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import EventKind, Kind, State
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
RULES = Rules((Tenant("lab"), Tenant("optics")))
REGISTRY = "registry.test:5000"
ADA = Principal("ada", USER, ("lab",))
BEN = Principal("ben", USER, ("lab",))
EVE = Principal("eve", USER, ("optics",))
PY = Kernel("py310", "Python 3.10", "/opt/kernels/py310")
TORCH = Kernel("torch", "PyTorch", "/opt/kernels/torch")


def lab(**settings: Any) -> Site:
    """One node with one GPU, and two tenants."""
    return Site([make.node("gpu-1", 1)], rules=RULES, **settings)


@pytest.fixture
def site() -> Site:
    return lab()


def image(name: str = "lab/torch", digit: str = "a", **fields: Any) -> Image:
    reference = f"{REGISTRY}/{name.partition(':')[0]}@sha256:{digit * 64}"
    return make.image(name, None, **{"reference": reference, **fields})


async def test_what_was_pushed_is_there_at_once_for_those_whose_it_is(control: Control) -> None:
    with pytest.raises(InvalidInput, match="EnvironmentNotOffered"):
        await control.workloads.submit(ADA, job(environment="lab/torch"))
    view = await control.images.add(ADA, image(), REGISTRY)
    assert (view.image.tenant, view.image.by, view.image.provenance.by, view.mine) == ("lab", "ada", "ada", True)

    def offered(who: Principal) -> set[str]:
        return {one.environment.name for one in control.launch.options(who).environments}

    assert [offered(who) - {"base", "notebook"} for who in (ADA, BEN, ROOT, EVE)] == [{"lab/torch"}] * 3 + [set()]
    assert [len(control.images.visible(who)) for who in (ADA, ROOT, EVE)] == [1, 1, 0]
    made = await submit(control, job(environment="lab/torch"), BEN)
    assert (made.spec.tenant, made.spec.environment) == ("lab", "lab/torch")
    explanation = await control.workloads.dry_run(ADA, job(environment="lab/torch"))
    assert explanation.startable_now
    told = [one.reason for one in await control.queries.events(ROOT) if one.kind is EventKind.AUDIT]
    assert told == [ImageRegistered(by="ada", image="lab/torch", digest=f"sha256:{'a' * 64}")]


async def test_others_can_neither_run_it_nor_learn_of_it(control: Control) -> None:
    await control.images.add(ADA, image(), REGISTRY)
    spoken_for = Submission(Kind.JOB, ("true",), environment="lab/torch", owner="eve", groups=("optics",))
    chosen = replace(spoken_for, tenant="lab")
    for who, ask in ((EVE, job(environment="lab/torch")), (SPAWNER, spoken_for)):
        with pytest.raises(InvalidInput, match="EnvironmentNotOffered"):
            await control.workloads.submit(who, ask)
    # What the hub says for a user gives no more than the user has, though the hub itself may do anything.
    with pytest.raises(Forbidden, match="eve may not submit to 'lab'"):
        await control.workloads.submit(SPAWNER, chosen)
    with pytest.raises(NotFound, match="there is no image 'lab/torch'; there are: none"):
        control.images.one(EVE, "lab/torch")
    with pytest.raises(NotFound):
        await control.images.remove(EVE, "lab/torch")


@pytest.mark.parametrize(
    ("who", "wanted", "registry", "error", "words"),
    [
        (EVE, image(), REGISTRY, Forbidden, r"eve is no member of 'lab'; names begin with commons/…, optics/…"),
        (ROOT, image("nobody/x"), REGISTRY, InvalidInput, r"no tenant 'nobody'; names begin with commons/…, lab/…"),
        (ADA, image("public/x"), REGISTRY, Forbidden, "only admins may give an image to everybody"),
        (ADA, image("torch"), REGISTRY, InvalidInput, "write TENANT/NAME"),
        (ADA, image("lab/other", reference=image().reference), REGISTRY, Forbidden, "pushed as registry.test:5000/lab"),
        (ADA, image(reference="sha256:" + "a" * 64), REGISTRY, Forbidden, "not one without a registry"),
        (ADA, image(reference=f"{REGISTRY}/lab/torch:2"), REGISTRY, InvalidInput, "@sha256"),
        (ADA, image(), None, Forbidden, "no registry of its own"),
        (ADA, image(kernels=(PY, PY)), REGISTRY, InvalidInput, "same name"),
    ],
)
async def test_what_may_not_be_registered_is_refused_with_what_may(
    control: Control, who: Principal, wanted: Image, registry: str | None, error: type[CommonageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await control.images.add(who, wanted, registry)
    assert control.images.visible(ROOT) == []


async def test_admins_register_images_of_anywhere_and_for_everybody(control: Control) -> None:
    loaded = await control.images.add(ROOT, image("public/tools", reference="sha256:" + "b" * 64), None)
    assert loaded.image.tenant is None
    await control.images.add(ROOT, image("optics/x", reference=f"docker.io/cuda/x@sha256:{'c' * 64}"), REGISTRY)
    assert [one.image.name for one in control.images.visible(EVE)] == ["optics/x", "public/tools"]
    assert not control.images.one(EVE, "public/tools").mine


async def test_a_name_belongs_to_who_took_it(control: Control) -> None:
    await control.images.add(ADA, image(), REGISTRY)
    for forbidden in (
        control.images.add(BEN, image(digit="b"), REGISTRY),
        control.images.remove(BEN, "lab/torch"),
        control.images.prepull(BEN, "lab/torch", ()),
    ):
        with pytest.raises(Forbidden, match="only ada, managers of its tenant and admins may"):
            await forbidden
    await control.images.add(BEN, image("lab/torch:mine"), REGISTRY)
    again = await control.images.add(ADA, image(digit="c", kernels=(PY, TORCH), server_prefix="/s"), REGISTRY)
    assert again.image.digest == f"sha256:{'c' * 64}"
    names = [one.environment.name for one in control.environments.views(ADA)]
    assert names == ["base", "notebook", "lab/torch", "lab/torch/py310", "lab/torch/torch", "lab/torch:mine"]


async def test_no_tenant_fills_the_catalogue_for_others(control: Control) -> None:
    full = [replace(image(f"lab/a{number}"), tenant="lab") for number in range(MAX_OF_TENANT)]
    control.catalogue.put(full)
    for refused in (
        control.images.add(ADA, image("lab/more"), REGISTRY),
        control.images.register(replace(image("lab/more"), tenant="lab")),
    ):
        with pytest.raises(Conflict, match=r"lab has 200 images.*remove unused ones"):
            await refused
    await control.images.add(ROOT, image("lab/a0", digit="b"), REGISTRY)
    await control.images.add(EVE, image("optics/more"), REGISTRY)
    await control.images.remove(ROOT, "lab/a1")
    await control.images.add(ADA, image("lab/more"), REGISTRY)


async def test_only_what_is_needed_of_a_removed_image_is_kept(site: Site, control: Control) -> None:
    kernels = (replace(TORCH, packages=tuple(Package(f"p{number}", "1") for number in range(100))), PY)
    added = await control.images.add(ADA, image(kernels=kernels, description="long", variables=(("A", "b"),)), REGISTRY)
    await control.images.remove(ADA, "lab/torch")
    (stored,) = await site.store.images()
    assert control.catalogue.removed("lab/torch/torch") == stored
    assert (stored.kernels, stored.description, stored.variables) == ((), "", ())
    assert (stored.tenant, stored.by, stored.reference) == ("lab", "ada", added.image.reference)


def test_the_newest_removed_images_of_each_tenant_are_remembered() -> None:
    catalogue = Catalogue()
    others = make.image("optics/x", "optics", removed=Removal("eve", 1.0))
    gone = [make.image(f"lab/a{number}", "lab", removed=Removal("ada", 2.0 + number)) for number in range(600)]
    catalogue.put([others, *gone])
    remembered = [one.name for one in [others, *gone] if catalogue.removed(one.name) is not None]
    assert remembered == ["optics/x", *(one.name for one in gone[-MAX_REMOVED:])]


async def test_the_packages_of_an_image_are_limited(control: Control) -> None:
    packages = tuple(Package(f"p{number}", "1") for number in range(2000))
    kernels = tuple(Kernel(f"k{number}", "", f"/opt/k{number}", packages) for number in range(3))
    with pytest.raises(InvalidInput, match="6000 packages together, of at most 5000"):
        await control.images.add(ADA, image(kernels=kernels), REGISTRY)


async def test_a_name_is_refused_before_anything_is_pushed_under_it(control: Control) -> None:
    await control.images.add(ADA, image(), REGISTRY)
    check = control.images.check_name
    for who, name, code in (
        (BEN, "lab/torch", "not-yours"),
        (EVE, "lab/torch", "not-a-member"),
        (ADA, "public/torch", "not-admin"),
        (ROOT, "nobody/torch", "unknown-tenant"),
        (ADA, "Torch", "invalid-image"),
    ):
        with pytest.raises(CommonageError) as refused:
            check(who, name)
        assert refused.value.problem_code == code
    reads = Principal("ada", frozenset({Scope.READ}), ("lab",))
    with pytest.raises(Forbidden):
        check(reads, "lab/torch")
    found = [check(who, name) for who, name in ((ADA, "lab/torch"), (BEN, "lab/torch:2"), (ROOT, "public/x"))]
    assert [(name, tenant, before and before.by) for name, tenant, before in found] == [
        ("lab/torch", "lab", "ada"),
        ("lab/torch:2", "lab", None),
        ("public/x", None, None),
    ]


async def test_work_in_a_removed_image_goes_on_and_what_waits_says_why_until_it_comes_back(
    site: Site, control: Control
) -> None:
    await control.images.add(ADA, image(), REGISTRY)
    runs, waits = [await submit(control, job(environment="lab/torch", cpus_milli=cpus), ADA) for cpus in (8000, 8000)]
    await site.clock.advance(2)
    assert [site.there(one).state for one in (runs, waits)] == [State.RUNNING, State.QUEUED]
    view, waiting = await control.images.remove(ADA, "lab/torch")
    assert (view.running, view.waiting, list(waiting)) == (1, 1, [waits.id])
    await site.clock.advance(2)
    assert [site.there(one).state for one in (runs, waits)] == [State.RUNNING, State.HELD]
    stands = control.queries.details(await control.queries.workload(ADA, waits.id))
    assert isinstance(stands.reason, ImageRemoved)
    assert (stands.reason.image, stands.reason.by) == ("lab/torch", "ada")
    assert (await control.queries.explain(ADA, waits.id)).reasons == (stands.reason,)
    with pytest.raises(InvalidInput) as caught:
        await control.workloads.submit(ADA, job(environment="lab/torch"))
    assert isinstance(caught.value.reason, EnvironmentNotOffered)
    assert (caught.value.reason.removed, caught.value.reason.offered) == (stands.reason, ("base",))
    await control.images.add(ADA, image(digit="b"), REGISTRY)
    await control.workloads.stop(ADA, runs.id)
    await site.clock.advance(2)
    assert site.there(waits).state is State.RUNNING
    assert site.engine.world.runs[f"{waits.id}-1"].request.environment.image == image(digit="b").reference


async def test_what_was_removed_is_remembered_across_a_restart(site: Site) -> None:
    async with site.open() as control:
        for name in ("lab/torch", "lab/old"):
            await control.images.add(ADA, image(name), REGISTRY)
        await control.images.remove(ROOT, "lab/old")
    async with site.open() as control:
        assert [one.image.name for one in control.images.visible(ADA)] == ["lab/torch"]
        for who in (ADA, ROOT, Principal("zoe", USER, ("lab", "optics"))):
            with pytest.raises(InvalidInput) as caught:
                await control.workloads.submit(who, job(environment="lab/old"))
            assert isinstance(caught.value.reason, EnvironmentNotOffered)
            assert isinstance(caught.value.reason.removed, ImageRemoved)
            assert caught.value.reason.removed.by == "root"
        with pytest.raises(InvalidInput) as caught:
            await control.workloads.submit(EVE, job(environment="lab/old"))
        assert isinstance(caught.value.reason, EnvironmentNotOffered)
        assert (caught.value.reason.exists, caught.value.reason.removed) == (False, None)


async def test_a_kernel_that_the_newer_image_lacks_is_told_with_those_it_has(control: Control) -> None:
    await control.images.add(ADA, image(kernels=(PY, TORCH)), REGISTRY)
    await control.images.add(ADA, image(kernels=(TORCH, replace(PY, name="py312"))), REGISTRY)
    with pytest.raises(InvalidInput) as caught:
        await control.workloads.submit(ADA, job(environment="lab/torch/py310"))
    assert isinstance(caught.value.reason, EnvironmentNotOffered)
    assert caught.value.reason.removed == EnvironmentNotInImage(
        environment="lab/torch/py310",
        image="lab/torch",
        environments=("lab/torch", "lab/torch/torch", "lab/torch/py312"),
    )


async def test_what_needs_a_gpu_is_refused_without_one(control: Control) -> None:
    await control.images.add(ADA, image(needs_gpu=True, min_vram_mib=6144), REGISTRY)
    with pytest.raises(InvalidInput, match=r"lab/torch needs a GPU with 6 GiB of VRAM.*--gpus 6144MiB") as caught:
        await control.workloads.submit(ADA, job(environment="lab/torch"))
    assert (caught.value.field, caught.value.problem_code) == ("gpus", "needs-gpu")
    with pytest.raises(InvalidInput, match="needs 6 GiB of VRAM, and 4 GiB was requested"):
        await control.workloads.submit(ADA, job(environment="lab/torch", gpu=parse_gpus("4GiB")))
    await control.workloads.submit(ADA, job(environment="lab/torch", gpu=parse_gpus("8GiB")))


async def test_an_image_is_brought_to_all_nodes_with_progress_and_to_those_that_join_later(site: Site) -> None:
    site.engine.prepare_s = 4.0
    async with site.open() as control:
        await control.images.add(ADA, image(), REGISTRY)
        await site.clock.advance(1)
        (seen,) = control.images.one(ADA, "lab/torch").nodes
        assert (seen.state, seen.progress) == (EnvironmentState.BUILDING, 0.5)
        assert isinstance(seen.reason, PreparingEnvironment)
        (environment,) = [one for one in control.environments.views(ADA) if one.environment.name == "lab/torch"]
        assert (environment.status.state, environment.status.progress) == (EnvironmentState.BUILDING, 0.5)
        await site.clock.advance(5)
        (seen,) = control.images.one(ADA, "lab/torch").nodes
        assert seen.state is EnvironmentState.READY
        site.engine.add_node(NodeReport("late", 4000, 8192))
        await site.clock.advance(20)
        assert [one.node for one in control.images.one(ADA, "lab/torch").nodes] == [seen.node, "late"]
        assert site.engine.prepared == [("lab/torch", seen.node), ("lab/torch", "late")]
        (environment,) = [one for one in control.environments.views(ADA) if one.environment.name == "lab/torch"]
        assert (environment.status.state, environment.status.reason) == (
            EnvironmentState.READY,
            OnNodes(ready=2, nodes=2),
        )


async def test_an_image_of_a_tenant_is_not_brought_to_sites_of_others() -> None:
    site = lab()
    site.settings.rules = replace(RULES, sites=(Place("theirs", tenants=("optics",)),))
    async with site.open() as control:
        control.engines.add(FakeEngine("theirs", [make.node("gpu-2").report], site.clock))
        await site.clock.advance(20)
        await control.images.add(ADA, image(), REGISTRY)
        await site.clock.advance(20)
        assert [one.site for one in control.images.one(ROOT, "lab/torch").nodes] == ["local"]


async def test_pulls_that_never_end_at_one_site_leave_room_for_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonage.control.catalogue.prepulls.MAX_AT_ONCE", 1)
    async with site.open() as control:
        far = FakeEngine("far", [make.node("gpu-2").report], site.clock)
        far.prepare_s = 1e9
        control.engines.add(far)
        await site.clock.advance(20)
        await control.images.add(ADA, image(), REGISTRY)
        await site.clock.advance(20)
        states = {one.site: one.state for one in control.images.one(ADA, "lab/torch").nodes}
        assert states == {"local": EnvironmentState.READY, "far": EnvironmentState.BUILDING}


async def test_where_it_fails_the_reason_is_shown_and_who_asks_again_has_it_tried(site: Site) -> None:
    site.engine.broken_environments["lab/torch"] = "no space left"
    async with site.open() as control:
        await control.images.add(ADA, image(), REGISTRY)
        await site.clock.advance(120)
        (seen,) = control.images.one(ADA, "lab/torch").nodes
        assert seen.state is EnvironmentState.FAILED
        assert seen.reason == EnvironmentFailed(environment="lab/torch", error="no space left")
        assert len(site.engine.prepared) == 1
        del site.engine.broken_environments["lab/torch"]
        view = await control.images.prepull(ADA, "lab/torch", [seen.node])
        assert view.nodes[0].state is EnvironmentState.BUILDING
        await site.clock.advance(1)
        assert control.images.one(ADA, "lab/torch").nodes[0].state is EnvironmentState.READY


async def test_a_node_that_does_not_answer_is_asked_again_after_a_while(site: Site, control: Control) -> None:
    site.engine.outage = "the daemon is away"
    await control.images.add(ADA, image(), REGISTRY)
    await site.clock.advance(1)
    assert control.images.one(ADA, "lab/torch").nodes[0].state is EnvironmentState.FAILED
    site.engine.outage = None
    await site.clock.advance(60)
    assert control.images.one(ADA, "lab/torch").nodes[0].state is EnvironmentState.READY


async def test_nothing_is_brought_unasked_where_the_settings_say_so() -> None:
    site = lab(prepull=False)
    async with site.open() as control:
        await control.images.add(ADA, image(), REGISTRY)
        await site.clock.advance(20)
        assert (site.engine.prepared, control.images.one(ADA, "lab/torch").nodes) == ([], ())
        with pytest.raises(NotFound, match="there is no node 'nowhere'; there are: gpu-1"):
            await control.images.prepull(ADA, "lab/torch", ["nowhere"])
        await control.images.prepull(ADA, "lab/torch", ())
        await site.clock.advance(1)
        assert site.engine.prepared == [("lab/torch", "gpu-1")]
        await control.nodes.drain(ROOT, make.node_key("gpu-1"), True)
        with pytest.raises(Conflict, match="gpu-1 takes no work now"):
            await control.images.prepull(ADA, "lab/torch", ["gpu-1"])
        with pytest.raises(Conflict, match="no node takes work now"):
            await control.images.prepull(ADA, "lab/torch", ())


async def test_a_retry_after_the_image_went_waits_for_it(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=3.0, exit_code=1)
    async with site.open() as control:
        await control.images.add(ADA, image(), REGISTRY)
        ask = job(environment="lab/torch", retry=make.workload().spec.retry)
        ask = replace(ask, retry=replace(ask.retry, retries=1, backoff_s=5.0))
        made = await submit(control, ask, ADA)
        await site.clock.advance(1)
        await control.images.remove(ADA, "lab/torch")
        await site.clock.advance(30)
        found = await control.queries.workload(ADA, made.id)
        assert (found.state, found.attempts, found.not_before) == (State.HELD, 1, None)
        assert isinstance(found.reason, ImageRemoved)


def pulling(tenth: int) -> PullingImage:
    return PullingImage(image="x", pulled_bytes=tenth * 10, total_bytes=100)


async def test_how_far_a_fetch_is_shows_at_once_and_is_written_now_and_then(site: Site) -> None:
    site.engine.default = Behaviour(start_delay_s=600.0, lasts_s=None)
    async with site.open() as control:
        made = await submit(control, job(), ADA)
        await site.clock.advance(1)

        def details() -> StateDetails:
            workload = control.live_state.get(made.id)
            assert workload is not None
            return control.queries.details(workload)

        for tenth in range(6):  # then the sweep asks the engine itself
            status = Status(f"{made.id}-1", Phase.STARTING, site.clock.now(), "gpu-1", pulling(tenth), tenth / 10)
            control.reconcile.report(site.engine, status)
            await site.clock.advance(0.5)
            assert details().progress == tenth / 10
        written = [one.reason for one in await control.queries.events(ADA) if one.kind is EventKind.PROGRESS]
        assert written == [pulling(tenth) for tenth in (0, 4)]
        assert details().reason == written[-1]
        running = Status(f"{made.id}-1", Phase.RUNNING, site.clock.now(), "gpu-1")
        control.reconcile.report(site.engine, running)
        await site.clock.advance(0.5)
        assert (site.there(made).state, details().progress) == (State.RUNNING, None)
