"""Builds of tenants' environments: submits them as jobs, and registers what they built.

A build is a workload of its tenant like any other, with queue, quota and log. Nothing else is stored about it: after a
restart, the newest builds are looked through for one that is not registered yet. Called by API and portal.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from commonage.control.access import access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.catalogue.images import Images
from commonage.control.engines import Engines
from commonage.control.resources.resources import Resources
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.control.workloads.submission import Submission, spec_of
from commonage.control.workloads.workloads import Workloads
from commonage.domain.builds import (
    BUILDER,
    CERTIFICATE,
    TOKEN,
    BuildOrder,
    BuildResult,
    BuiltImage,
    SourceKind,
    check_source,
    order_text,
    read_order,
    read_result,
)
from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unavailable
from commonage.domain.images import Environment, Image, Provenance, check, parse_image_name, repository_of, scope_of
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import EnvironmentBuilt, EnvironmentNotRegistered
from commonage.domain.resources import Document
from commonage.domain.workloads import Event, EventKind, Kind, State, Workload
from commonage.files.apps import apps_of_environments
from commonage.ports.clock import Clock
from commonage.ports.registry import Registry
from commonage.ports.store import Filter, Store

log = logging.getLogger(__name__)
COMMAND = ("python", "-m", "commonage.images.build_job")
TIME_LIMIT_S = 3600
_LOOK_BACK = 200  # newest builds looked through at start
_GIVE_UP_AFTER_S = 24 * 3600.0
_TAIL = 64
_READ_WITHIN_S = 60.0
_RETRY_S = 5.0
_LEAST_MEMORY_MIB = 2048


@dataclass(frozen=True, slots=True)
class NewBuild:
    """`bundle` is the digest of the files for a Containerfile. Without a size, the usual ones hold."""

    order: BuildOrder
    bundle: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None


@dataclass(slots=True)
class EnvironmentBuilds:
    """A loop: registers each build that has succeeded. `engines` have their logs; `registry` is that of the site."""

    store: Store
    writer: Writer
    catalogue: Catalogue
    images: Images
    resources: Resources
    workloads: Workloads
    engines: Engines
    clock: Clock
    settings: ControlSettings
    registry: Registry | None = None
    iterations: Iterations = field(init=False)
    _ended: asyncio.Queue[Workload] = field(default_factory=asyncio.Queue)
    _preparing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.iterations = Iterations("environment_builds", self.clock.now, _READ_WITHIN_S * 2)

    async def open(self) -> None:
        which = Filter(environment=BUILDER, states=(State.SUCCEEDED,))
        page = await self.store.workloads(which, limit=_LOOK_BACK)
        newest: dict[str, Workload] = {}
        for workload in page.items:
            order = _order_of(workload)
            if order is not None:
                newest.setdefault(order.name, workload)
        for name, workload in newest.items():
            if self.clock.now() - workload.since < _GIVE_UP_AFTER_S and not self._is_settled(workload, name):
                self.changed(workload)

    def changed(self, workload: Workload) -> None:
        """Called with each workload that was written."""
        if workload.spec.build and workload.state is State.SUCCEEDED:
            self._ended.put_nowait(workload)

    # --- the use cases ---------------------------------------------------------------------------------------------

    def check_name(self, principal: Principal, name: str) -> str:
        """The tenant whose environment this is. Raises InvalidInput, Forbidden, Conflict."""
        parsed, access = parse_image_name(name), access_of(principal, self.settings)
        tenants = access.tenants(Permission.SEE_TENANT)
        found = next((one.name for one in tenants if scope_of(one.name) == parsed.scope), None)
        if found is None or ":" in name:
            there = ", ".join(f"{scope_of(one.name)}/NAME" for one in tenants)
            raise InvalidInput(
                f"{name[:100]!r} is not the name of an environment of a tenant; write it like {there}",
                field="name",
                code="invalid-build",
            )
        access.need(Permission.MANAGE_ENVIRONMENTS, found)
        return found

    async def submit(self, principal: Principal, wanted: NewBuild) -> Workload:
        """Queue a build. Raises InvalidInput, TooLarge, Forbidden, Conflict, and the errors of a submission."""
        order = wanted.order
        tenant = self.check_name(principal, order.name)
        check_source(order.source)
        kind = order.source.kind
        is_image = kind in (SourceKind.CONTAINERFILE, SourceKind.IMAGE, SourceKind.GIT)
        self._check_free(order.name, is_image=is_image)
        if is_image:
            self.images.check_room(order.name, tenant)
        if kind is not SourceKind.CONTAINERFILE and wanted.bundle is not None:
            raise InvalidInput("only a Containerfile is built with files", field="bundle", code="invalid-build")
        builder = self.catalogue.get(BUILDER)
        if builder is None:
            raise Conflict(
                "This installation cannot build environments: its engine runs containers, and it has no environment "
                f"{BUILDER!r}. Build on your own machine with `commonage image build`.",
                code="no-builder",
            )
        registry, access = self.registry, dict[str, str]()
        if registry is not None:
            token = registry.push_token(principal.name, parse_image_name(order.name).repository)
            access = {CERTIFICATE: registry.about.certificate, TOKEN: token.text}
        address = "" if registry is None else registry.about.address
        order = replace(order, registry=address, has_files=wanted.bundle is not None)
        submission = Submission(
            kind=Kind.JOB,
            command=COMMAND,
            name=f"build {order.name}",
            tenant=tenant,
            cpus_milli=wanted.cpus_milli,
            memory_mib=wanted.memory_mib or max(self.settings.default_memory_mib, _LEAST_MEMORY_MIB),
            secrets=tuple(access.items()),
            # Its Python is this server's own.
            labels=(("site", LOCAL_SITE),) if builder.python else (),
            time_limit_s=TIME_LIMIT_S,
            requeue=False,
            bundle=wanted.bundle,
        )
        usual = spec_of(submission, principal, self.catalogue, self.settings)
        spec = replace(usual, environment=BUILDER, build=order_text(order))
        submitted = await self.workloads.submit_run(spec, None, lambda _: {})
        return submitted.workloads[0]

    async def remove(self, principal: Principal, name: str) -> None:
        """Remove an environment that was built. Running workloads continue. Raises NotFound, Forbidden, Conflict."""
        found = self.catalogue.get(name)
        access = access_of(principal, self.settings)
        if found is None or not found.built_by or found.tenant is None:
            raise NotFound(f"there is no environment {name[:100]!r} that was built here", code="environment-not-found")
        if not access.may(Permission.SEE_TENANT, found.tenant):
            raise NotFound(f"there is no environment {name[:100]!r} that was built here", code="environment-not-found")
        access.need(Permission.MANAGE_ENVIRONMENTS, found.tenant)
        await self.resources.revise(principal.name, [], [("Environment", name)])

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                with self.iterations.rest():
                    workload = await self._ended.get()
                try:
                    is_done = await self._is_done(workload)
                except Exception:  # builds of other tenants continue
                    log.exception("the build %s cannot be registered", workload.id)
                    continue
                if not is_done:
                    with self.iterations.rest():
                        await self.clock.sleep(_RETRY_S)
                    self._ended.put_nowait(workload)
        finally:
            for task in self._preparing:
                task.cancel()

    async def _is_done(self, workload: Workload) -> bool:
        """Register its result, or note why that is impossible; False if it can be tried again."""
        order, spec = _order_of(workload), workload.spec
        if order is None:
            return True
        kind = EventKind.AUDIT
        reason: Reason = EnvironmentBuilt(by=spec.owner, environment=order.name)
        try:
            await self._put(workload, order, await self._result(workload))
        except CommonageError as error:
            if error.is_retryable:
                log.warning("the build %s cannot be registered yet: %s", workload.id, error)
                return False
            kind, reason = EventKind.WARNING, EnvironmentNotRegistered(environment=order.name, error=error.message)
        event = Event(kind, self.clock.now(), reason, workload.id, owner=spec.owner, tenant=spec.tenant)
        try:
            await self.writer.write(events=[event])
        except CommonageError as error:
            log.warning("no event about the build %s was written: %s", workload.id, error)
        return True

    async def _result(self, workload: Workload) -> BuildResult:
        if workload.attempt is None or workload.attempt.allocation.site not in self.engines:
            raise NotFound("its site is gone, and its log with it", code="log-not-found")
        engine = self.engines[workload.attempt.allocation.site]
        try:
            async with asyncio.timeout(_READ_WITHIN_S):
                lines = [line.text async for line in engine.logs(workload.attempt.id, tail=_TAIL)]
        except TimeoutError:
            raise Unavailable("the log of the build does not arrive") from None
        return read_result(lines)

    async def _put(self, workload: Workload, order: BuildOrder, result: BuildResult) -> None:
        owner, tenant = workload.spec.owner, workload.spec.tenant
        if parse_image_name(order.name).scope != scope_of(tenant):
            raise Conflict(f"{order.name} is not of the tenant {tenant}, which built it")
        self._check_free(order.name, is_image=result.image is not None)
        if result.image is not None:
            if self.registry is None:
                raise Conflict("this installation no longer has a registry")
            image = _image_of(workload, order, result.image, self.registry.about.address)
            check(image, [one.name for one in apps_of_environments()])
            repository_of(image.reference)
            await self.images.register(image)
            if order.name in self.catalogue and self.catalogue[order.name].built_by:
                await self.resources.revise(owner, [], [("Environment", order.name)])
            return
        await self.resources.revise(owner, [_document(workload, order, result.requirements)], [])
        environment = self.catalogue.get(order.name)
        if environment is not None:
            self._prepare(environment, workload)

    def _prepare(self, environment: Environment, workload: Workload) -> None:
        """Have the site install it at once, so that its first user does not wait. A failure is its status there."""
        if workload.attempt is None:
            return
        engine = self.engines[workload.attempt.allocation.site]

        async def prepare() -> None:
            try:
                await engine.prepare(environment)
            except CommonageError as error:
                log.warning("environment %s cannot be installed: %s", environment.name, error)

        task = asyncio.create_task(prepare())
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def _is_settled(self, workload: Workload, name: str) -> bool:
        """Whether this build, or a later change, decided what the environment `name` is now."""
        environment, image = self.catalogue.get(name), self.catalogue.image(name)
        if environment is not None and image is None:
            return environment.built_by >= workload.id
        changed_at = max(self.resources.changed_at("Environment", name), self.catalogue.image_changed_at(name))
        return changed_at >= workload.since

    def _check_free(self, name: str, *, is_image: bool) -> None:
        """Raise Conflict if a declared environment has this name, or an image, and a list of packages is built."""
        found, image = self.catalogue.get(name), self.catalogue.image(name)
        if found is not None and image is None and not found.built_by:
            raise Conflict(f"{name} is declared by an admin; choose another name")
        if image is not None and not is_image:
            raise Conflict(f"{name} is an image; remove it first (`commonage image rm {name}`), or choose another name")


def _order_of(workload: Workload) -> BuildOrder | None:
    """None if it is no build, or its order cannot be read."""
    if not workload.spec.build:
        return None
    try:
        return read_order(workload.spec.build)
    except CommonageError as error:
        log.warning("the order of the build %s is left out: %s", workload.id, error)
        return None


def _document(workload: Workload, order: BuildOrder, requirements: tuple[str, ...]) -> Document:
    return {
        "kind": "Environment",
        "name": order.name,
        "title": order.title,
        "description": order.description,
        "kinds": [kind.value for kind in Kind],
        "kernels": {"python3": list(requirements)},
        "tenant": workload.spec.tenant,
        "built_by": workload.id,
    }


def _image_of(workload: Workload, order: BuildOrder, built: BuiltImage, registry: str) -> Image:
    name = parse_image_name(order.name)
    kinds = (Kind.JOB, Kind.SERVICE) if built.server_prefix is None else tuple(Kind)
    return Image(
        name=str(name),
        tenant=workload.spec.tenant,
        reference=f"{registry}/{name.repository}@{built.digest}",
        by=workload.spec.owner,
        at=workload.since,
        title=order.title,
        description=order.description,
        size_bytes=built.size_bytes,
        kinds=kinds,
        kernels=built.kernels,
        server_prefix=built.server_prefix or "",
        path=built.path,
        apps=built.apps,
        provenance=Provenance(by=workload.spec.owner, at=workload.since, builder=f"build {workload.id}"),
    )
