"""Builds of tenants' environments: who may build, what is submitted, and what a build registers."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.control.world import ROOT, USER, Site, job, submit

from commonage.control.catalogue.builds import COMMAND, EnvironmentBuilds, NewBuild
from commonage.control.control import Control
from commonage.domain.builds import (
    BUILDER,
    ORDER,
    BuildOrder,
    BuildResult,
    BuildSource,
    BuiltImage,
    SourceKind,
    order_text,
    read_order,
    result_lines,
)
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from commonage.domain.images import Kernel
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import EnvironmentBuilt, EnvironmentNotRegistered
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Kind, State, Workload
from commonage.ports.registry import RegistryAbout, RegistryToken
from commonage.resources.workloads import EnvironmentEntry
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
MANAGER = RoleBinding(SubjectKind.USER, "ada", Role.MANAGER)
TEACHER = RoleBinding(SubjectKind.USER, "tea", Role.TEACHER)
RULES = Rules((Tenant("lab", members=(MANAGER, TEACHER)), Tenant("optics")))
ADA = Principal("ada", USER | {Scope.MANAGE}, ("lab",))
BEN = Principal("ben", USER | {Scope.MANAGE}, ("lab",))
EVE = Principal("eve", USER | {Scope.MANAGE}, ("optics",))
TEA = Principal("tea", USER | {Scope.MANAGE})
PACKAGES = ("ipykernel==7.0", "numpy==2.1")


class ARegistry:
    about = RegistryAbout("registry.test:5000", "PEM")

    def push_token(self, subject: str, repository: str) -> RegistryToken:
        return RegistryToken(f"{subject} {repository}", 1_790_000_000.0, 300)


@pytest.fixture
def site() -> Site:
    made = Site([make.node("gpu-1", 1)], rules=RULES)
    made.environments.append(make.environment(BUILDER, kinds=()))
    return made


def wanted(name: str = "lab/nlp", **source: Any) -> NewBuild:
    fields = {"kind": SourceKind.REQUIREMENTS, "text": "numpy", **source}
    return NewBuild(BuildOrder(name, BuildSource(**fields), title="Language"))


def prints(site: Site, *lines: str, exit_code: int = 0) -> None:
    site.engine.behave(Behaviour(lasts_s=1, exit_code=exit_code, prints=lines), command=COMMAND)


async def built(site: Site, control: Control, *packages: str) -> str:
    prints(site, "Looking up packages …", *result_lines(BuildResult(packages or PACKAGES)))
    workload = await control.builds.submit(ADA, wanted())
    await site.clock.advance(5)
    return workload.id


async def test_a_build_is_a_job_of_its_tenant_that_registers_what_it_built(site: Site, control: Control) -> None:
    prints(site, *result_lines(BuildResult(PACKAGES)))
    workload = await control.builds.submit(ADA, wanted())
    spec = workload.spec
    assert (spec.kind, spec.tenant, spec.owner, spec.environment) == (Kind.JOB, "lab", "ada", BUILDER)
    assert read_order(spec.build).source.text == "numpy"
    assert dict(control._start_requests.template(spec, "local").variables)[ORDER] == spec.build
    assert "lab/nlp" not in control.catalogue
    await site.clock.advance(5)
    environment = control.catalogue["lab/nlp"]
    [kernel] = environment.kernels
    assert (kernel.name, kernel.requirements, kernel.wheels_only) == ("python3", PACKAGES, True)
    assert (environment.tenant, environment.built_by, environment.title) == ("lab", workload.id, "Language")
    assert environment.requirements == control.catalogue["notebook"].requirements
    assert ("lab/nlp", None) in site.engine.prepared
    reasons = [one.reason for one in await control.queries.events(ADA, workload_id=workload.id)]
    assert EnvironmentBuilt(by="ada", environment="lab/nlp") in reasons


async def test_only_managers_of_the_tenant_build_and_remove(site: Site, control: Control) -> None:
    for who, error in ((BEN, Forbidden), (EVE, InvalidInput)):
        with pytest.raises(error):
            await control.builds.submit(who, wanted())
    await built(site, control)
    with pytest.raises(Forbidden):
        await control.builds.remove(BEN, "lab/nlp")
    with pytest.raises(NotFound):
        await control.builds.remove(EVE, "lab/nlp")
    await control.builds.remove(ADA, "lab/nlp")
    assert "lab/nlp" not in control.catalogue


async def test_others_do_not_see_it_and_nobody_is_offered_the_builder(site: Site, control: Control) -> None:
    await built(site, control)

    def seen(who: Principal) -> set[str]:
        return {one.environment.name for one in control.environments.views(who)}

    assert (seen(BEN), seen(EVE)) == ({"base", "notebook", "lab/nlp"}, {"base", "notebook"})


async def test_a_second_build_replaces_the_first(site: Site, control: Control) -> None:
    await built(site, control)
    second = await built(site, control, "numpy==2.2")
    assert control.catalogue["lab/nlp"].built_by == second
    assert control.catalogue["lab/nlp"].kernels[0].requirements == ("numpy==2.2",)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("commonage-build-result 1/2 {",),
        ("commonage-build-result 1/1 {}}",),
        ("commonage-build-result 1/1 " + "[" * 7000,),
        tuple(result_lines(BuildResult(("numpy @ https://evil.example/numpy.whl",)))),
        tuple(result_lines(BuildResult(("--index-url=elsewhere",)))),
    ],
)
async def test_a_result_that_is_no_list_of_versions_registers_nothing(
    site: Site, control: Control, lines: tuple[str, ...]
) -> None:
    prints(site, *lines)
    workload = await control.builds.submit(ADA, wanted())
    await site.clock.advance(5)
    assert site.there(workload).state is State.SUCCEEDED
    assert "lab/nlp" not in control.catalogue
    reasons = [one.reason for one in await control.queries.events(ADA, workload_id=workload.id)]
    assert any(isinstance(one, EnvironmentNotRegistered) for one in reasons)


async def test_a_failed_build_changes_nothing(site: Site, control: Control) -> None:
    first = await built(site, control)
    prints(site, *result_lines(BuildResult(("numpy==9",))), exit_code=1)
    await control.builds.submit(ADA, wanted())
    await site.clock.advance(5)
    assert control.catalogue["lab/nlp"].built_by == first


async def test_a_build_that_was_not_registered_before_a_crash_is_registered_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(site, *result_lines(BuildResult(PACKAGES)))
    with monkeypatch.context() as crash:
        crash.setattr(EnvironmentBuilds, "changed", lambda _self, _workload: None)
        async with site.open() as control:
            workload = await control.builds.submit(ADA, wanted())
            await site.clock.advance(5)
            assert site.there(workload).state is State.SUCCEEDED
            assert "lab/nlp" not in control.catalogue
    for _ in range(2):
        async with site.open() as control:
            await site.clock.advance(5)
            assert control.catalogue["lab/nlp"].built_by == workload.id
            reasons = [one.reason for one in await control.queries.events(ADA, workload_id=workload.id)]
            assert sum(isinstance(one, EnvironmentBuilt) for one in reasons) == 1


async def test_users_submit_nothing_to_the_builder_even_where_it_is_declared_for_jobs() -> None:
    declared = EnvironmentEntry(name=BUILDER, image="builder:1").entry()
    assert declared.kinds == ()
    site = Site([make.node("gpu-1", 1)], rules=RULES)
    site.environments.append(replace(declared, kinds=tuple(Kind)))
    async with site.open() as control:
        with pytest.raises(InvalidInput, match=BUILDER):
            await submit(control, job("true", environment=BUILDER), BEN)
        await built(site, control)
        assert "lab/nlp" in control.catalogue


async def test_a_users_job_that_looks_like_a_build_registers_nothing(site: Site, control: Control) -> None:
    order = order_text(BuildOrder("optics/nlp", BuildSource(SourceKind.REQUIREMENTS, "numpy")))
    prints(site, *result_lines(BuildResult(PACKAGES)))
    workload = await submit(control, job(*COMMAND, variables=((ORDER, order),), tenant="lab"), BEN)
    await site.clock.advance(5)
    assert site.there(workload).state is State.SUCCEEDED
    assert not {"lab/nlp", "optics/nlp"} & set(control.catalogue)


@pytest.mark.parametrize(
    "build", ["", "{", order_text(BuildOrder("optics/nlp", BuildSource(SourceKind.REQUIREMENTS, "numpy")))]
)
async def test_an_order_that_is_missing_broken_or_for_another_tenant_stops_no_later_build(
    site: Site, build: str
) -> None:
    prints(site, *result_lines(BuildResult(PACKAGES)))
    spec = make.spec(environment=BUILDER, command=COMMAND, tenant="lab", owner="ada", build=build)
    async with site.open() as control:
        before = (await control.workloads.submit_run(spec, None, lambda _: {})).workloads[0]
        await site.clock.advance(5)
        assert site.there(before).state is State.SUCCEEDED
    async with site.open() as control:
        await built(site, control)
        assert "lab/nlp" in control.catalogue
        assert "optics/nlp" not in control.catalogue


async def test_an_error_in_one_registration_stops_no_later_build(
    site: Site, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_self: EnvironmentBuilds, _workload: Workload) -> bool:
        raise RuntimeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(EnvironmentBuilds, "_is_done", fails)
        await built(site, control)
        assert "lab/nlp" not in control.catalogue
    await built(site, control)
    assert "lab/nlp" in control.catalogue


@pytest.mark.parametrize("digest", ["sha256:" + "a" * 64, "sha256:a", "latest"])
async def test_an_image_that_was_built_is_in_the_repository_of_its_name_at_this_registry(
    site: Site, digest: str
) -> None:
    site.registry = ARegistry()
    prints(site, *result_lines(BuildResult(image=BuiltImage(digest, 5))))
    async with site.open() as control:
        workload = await control.builds.submit(ADA, wanted(kind=SourceKind.IMAGE, text="", url="quay.io/x/y:1"))
        await site.clock.advance(5)
        image = control.catalogue.image("lab/nlp")
        reasons = [one.reason for one in await control.queries.events(ADA, workload_id=workload.id)]
    if len(digest) < 64:
        assert image is None
        assert any(isinstance(one, EnvironmentNotRegistered) for one in reasons)
    else:
        assert image is not None
        assert image.reference == f"registry.test:5000/lab/nlp@{digest}"


async def test_text_of_a_built_image_that_no_database_holds_is_replaced(site: Site) -> None:
    site.registry = ARegistry()
    found = BuiltImage("sha256:" + "a" * 64, 5, kernels=(Kernel("python3", "\ud800\x00"),))
    prints(site, *result_lines(BuildResult(image=found)))
    async with site.open() as control:
        await control.builds.submit(ADA, wanted(kind=SourceKind.IMAGE, text="", url="quay.io/x/y:1"))
        await site.clock.advance(5)
        image = control.catalogue.image("lab/nlp")
    assert image is not None
    assert image.kernels[0].title == "\ufffd\ufffd"


async def test_only_its_owner_enters_a_build(site: Site, control: Control) -> None:
    site.engine.behave(Behaviour(lasts_s=None), command=COMMAND)
    workload = await control.builds.submit(ADA, wanted())
    await site.clock.advance(5)
    await control.execs.check(ADA, workload.id)
    for who in (TEA, ROOT):
        with pytest.raises(Forbidden, match="builds an environment"):
            await control.execs.begin(who, workload.id, ["sh"], None)
    other = await submit(control, job("sleep", tenant="lab"), BEN)
    await site.clock.advance(5)
    await control.execs.check(TEA, other.id)


async def test_a_declared_name_is_not_taken(site: Site, control: Control) -> None:
    await control.images.register(make.image("lab/nlp", "lab"))
    with pytest.raises(Conflict, match="is an image"):
        await control.builds.submit(ADA, wanted())


@pytest.mark.parametrize(
    "source",
    [
        {"text": " "},
        {"kind": SourceKind.GIT, "url": "file:///etc"},
        {"kind": SourceKind.GIT, "url": "ssh://git@github.com/lab/x"},
        {"kind": SourceKind.GIT, "url": "https://user:secret@github.com/lab/x"},
        {"kind": SourceKind.GIT, "url": "https://github.com/lab/x", "ref": "--upload-pack=touch"},
        {"kind": SourceKind.IMAGE, "url": "--help"},
        {"kind": SourceKind.IMAGE, "url": "dir:/etc"},
    ],
)
async def test_hostile_sources_are_refused_before_anything_runs(control: Control, source: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await control.builds.submit(ADA, wanted(**source))


async def test_without_a_builder_the_refusal_says_what_to_do(site: Site) -> None:
    site.environments = [one for one in site.environments if one.name != BUILDER]
    async with site.open() as control:
        with pytest.raises(Conflict, match="commonage image build"):
            await control.builds.submit(ADA, wanted())


async def test_a_session_keeps_packages_only_where_the_tenant_allows_it(site: Site) -> None:
    kept = replace(RULES.tenants[0], own_packages=True)
    for tenant, expected in ((kept, ".commonage/packages/notebook"), (replace(kept, own_packages=False), None)):
        place = Site([make.node("gpu-1", 1)], rules=Rules((tenant,)))
        async with place.open() as control:
            spec = make.spec(kind=Kind.SESSION, tenant="lab", environment="notebook", owner="ada")
            template = control._start_requests.template(spec, "local")
            assert dict(template.variables).get("COMMONAGE_PACKAGES") == expected
