"""Helpers for tests of the API: the control plane behind the API, on any store, with the fake engine.

Tokens are `NAME` for one of PEOPLE, `admin:NAME` for an admin, `manage:NAME` for a user who has the scope `manage` too,
`read:NAME` for a user with the scope `read` only, `none:NAME` for a user without scopes, `only-admin:NAME` for a user
with the scope `admin` only, SPAWNER for the hub's spawner, OPERATOR_TOKEN for the operator.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
import uvicorn
from tests.fakes.databases import migrated_sqlite
from tests.fakes.hub_users import HubUsers
from tests.fakes.metrics import KeptMetrics
from tests.fakes.waiting import until

from commonage.api.app import create_app, end_streams
from commonage.api.auth import Auth
from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import BundleLimits, ControlSettings, Limits
from commonage.control.workloads.submission import Submission
from commonage.control.workloads.workloads import HUB
from commonage.domain.errors import Unavailable
from commonage.domain.images import Environment
from commonage.domain.permissions import RoleBinding
from commonage.domain.principals import Principal, Scope
from commonage.domain.tenants import Rules
from commonage.domain.usage import Prices
from commonage.domain.volumes import Volume
from commonage.domain.workloads import Kind
from commonage.files.safe_path import SafePath
from commonage.gpu.none import NoDevices
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.identity import IssuedToken
from commonage.ports.sites import Sites
from commonage.ports.store import Store
from commonage.server.bootstrap import SystemClock
from commonage.server.web import WEBSOCKETS
from commonage.storage.materials.credentials import Credentials
from commonage.storage.materials.home_copies import FolderCopies
from commonage.storage.materials.materials import MaterialFolders
from commonage.storage.materials.versions import Versions
from commonage.storage.user_files import FolderFiles
from commonage.store.bundle_files import BundleFiles
from commonage.store.sql_store import SqlStore
from commonage.testing import factories
from commonage.testing.fakes.engine import FakeEngine
from commonage.testing.fakes.store import MemoryStore
from commonage.wire.hub import API_PATH

SPAWNER = "secret-of-the-spawner"
OPERATOR_TOKEN = "secret-of-the-operator"
URL = "http://commonage.test"
PEOPLE = frozenset({"ann", "bob", "root", "hub", "_operator"})
_USER = frozenset({Scope.READ, Scope.SUBMIT, Scope.TOKENS})
# Tests send more requests than users may.
PLENTY = Limits(requests_per_s=1e6, failed_tokens_per_s=1e6)


@dataclass
class FakeIdentity(HubUsers):
    """The identity port: whose token it is stands in the token."""

    trouble: bool = False
    not_valid: set[str] = field(default_factory=set)
    lost_rights: set[str] = field(default_factory=set)
    control: Control | None = None
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shared: list[tuple[str, str, str]] = field(default_factory=list)
    minted: list[tuple[str, tuple[Scope, ...], str, int]] = field(default_factory=list)
    revoked: list[tuple[str, str]] = field(default_factory=list)
    expiries: dict[str, float] = field(default_factory=dict)
    hub_delay_s: float = 0

    async def whois(self, token: str) -> Principal | None:
        if self.trouble:
            raise Unavailable("the hub does not answer now")
        role, _, name = token.rpartition(":")
        if name not in PEOPLE or token in self.not_valid:
            return None
        if token in self.lost_rights:
            return Principal(name, frozenset())
        scopes = {
            "": _USER,
            "admin": frozenset(Scope),
            "read": frozenset({Scope.READ}),
            "none": frozenset[Scope](),
            "manage": _USER | {Scope.MANAGE},
            "only-admin": frozenset({Scope.ADMIN}),
        }
        return Principal(name, scopes.get(role, _USER), self.groups.get(name, ()))

    def authorize_url(self, state: str) -> str:
        return f"/hub/api/oauth2/authorize?state={state}"

    async def exchange(self, code: str) -> str:
        return code

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        """Do what the hub's spawner does in turn: submit it, in the user's name and under the given key."""
        ask = Submission(Kind.SESSION, name=name, environment=options["environment"], key=options["key"], owner=user)
        if self.control is not None:
            await self.control.workloads.submit(Principal(HUB, frozenset(Scope)), ask)

    async def stop_session(self, user: str, name: str) -> None:
        pass

    async def share_session(self, user: str, name: str, visitor: str) -> None:
        self.shared.append((user, name, visitor))

    async def expires_at(self, token: str) -> float | None:
        return self.expiries.get(token)

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> IssuedToken:
        assert expires_s is not None
        self.minted.append((user, tuple(scopes), note, expires_s))
        return IssuedToken("a1", f"token-of-{user}", time.time() + self.hub_delay_s + expires_s)

    async def revoke_token(self, user: str, token_id: str) -> None:
        self.revoked.append((user, token_id))

    async def ensure_user(self, user: str) -> None:
        pass


@dataclass(frozen=True)
class SampledDevices:
    """The devices that measure the GPU of `gpu-1`, and the interval."""

    devices: Devices
    sample_every_s: float = 5.0


HERE = Environment("base", "This machine's own shell", python="/bin/sh")
ENVIRONMENTS = [factories.environment("base"), factories.environment("notebook", kinds=(Kind.SESSION,))]
VOLUMES = (
    Volume("datasets", "Data sets", source="/srv/datasets"),
    Volume("results", source="/srv/{tenant}/{user}", writable=True),
    Volume("exam", source="/srv/exam", tenants=("course",)),
)


@dataclass
class Api:
    """The API and everything behind it."""

    control: Control
    engine: FakeEngine
    identity: FakeIdentity
    app: Any

    def client(self, token: str | None = "ann", **headers: str) -> httpx2.AsyncClient:
        """A client of one user, at the API's address. Close it."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url=f"{URL}{API_PATH}", headers=headers)


def make_control(
    folder: Path,
    store: Store | None = None,
    identity: FakeIdentity | None = None,
    devices: SampledDevices | None = None,
    rules: Rules | None = None,
    engine: Engine | None = None,
    limits: Limits = PLENTY,
    bundles: BundleLimits | None = None,
    platform_roles: tuple[RoleBinding, ...] = (),
    sites: Sites | None = None,
    volumes: tuple[Volume, ...] = VOLUMES,
) -> tuple[Control, FakeEngine]:
    """Control with two nodes: `gpu-1` with a GPU of 24 GiB, `cpu-1` without; or with another engine than the fake."""
    clock = SystemClock()
    nodes = [factories.node("gpu-1", 1).report, factories.node("cpu-1").report]
    fake = FakeEngine("local", nodes, clock)
    world = Adapters(
        store=store or MemoryStore(),
        metrics=KeptMetrics(),
        clock=clock,
        identity=identity or FakeIdentity(),
        bundles=BundleFiles(folder / "bundles"),
        devices=devices.devices if devices else NoDevices(),
        engines=Engines([engine or fake]),
        environments=ENVIRONMENTS if engine is None else [HERE],
        chance=random.randrange,
        sites=sites,
        files=FolderFiles(SafePath(folder / "workspaces")),
        materials=MaterialFolders(
            Versions(SafePath(folder / "materials"), folder / "repositories"),
            Credentials(folder / "credentials"),
            FolderCopies(SafePath(folder / "homes")),
        ),
    )
    settings = ControlSettings(
        prices=Prices(gpu_gib_h=0.5, cpu_h=0.1, currency="EUR"),
        session_appears_within_s=30,
        sample_every_s=devices.sample_every_s if devices else 5.0,
        rules=rules or Rules(),
        bundles=bundles or BundleLimits(),
        volumes=volumes,
        limits=limits,
        platform_roles=platform_roles,
        materials_folder=str(folder / "materials"),
    )
    return Control(world, settings), fake


def make_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Store:
    """A fresh store: `sqlite` or `postgresql` (which needs the machinery of that name)."""
    if kind == "postgresql":
        return SqlStore(request.getfixturevalue("migrated_postgres_url"))
    return SqlStore(migrated_sqlite(folder / "api.db"))


STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql")))


async def _stand(control: Control) -> None:
    """Nothing is started; its nodes are looked at, as it would be called behind after a minute without."""
    async with asyncio.TaskGroup() as group:
        group.create_task(control.writer.run())
        while True:
            await control.nodes.refresh()
            await asyncio.sleep(10)


@asynccontextmanager
async def serving(
    folder: Path,
    store: Store | None = None,
    *,
    run: bool = True,
    devices: SampledDevices | None = None,
    rules: Rules | None = None,
    engine: Callable[[], Engine] | None = None,
    limits: Limits = PLENTY,
    bundles: BundleLimits | None = None,
    identity: FakeIdentity | None = None,
    platform_roles: tuple[RoleBinding, ...] = (),
    sites: Sites | None = None,
    volumes: tuple[Volume, ...] = VOLUMES,
) -> AsyncGenerator[Api]:
    """The API over a control that runs (or only stands, with its nodes known and its writer writing)."""
    identity = identity or FakeIdentity()
    other = engine() if engine is not None else None
    control, fake = make_control(
        folder, store, identity, devices, rules, other, limits, bundles, platform_roles, sites, volumes
    )
    identity.control = control
    await control.store.open()
    await control.open()
    loops = asyncio.create_task(control.run() if run else _stand(control))
    admit = control.names.admit
    portal = create_router(control, PortalAuth(identity, control.clock, "the secret of the portal", admit=admit))
    app = create_app(control, Auth(identity, SPAWNER, OPERATOR_TOKEN, admit), portal)
    try:
        await until(control.node_views.all)
        yield Api(control, fake, identity, app)
    finally:
        loops.cancel()
        await asyncio.wait([loops])
        await control.close()
        await control.store.close()


@contextmanager
def served(
    folder: Path,
    *,
    run: bool = True,
    devices: SampledDevices | None = None,
    prepare: Callable[[Api], None] | None = None,
    rules: Rules | None = None,
    engine: Callable[[], Engine] | None = None,
) -> Iterator[str]:
    """The same on a real socket, in its own thread. Yields the installation's address. `prepare` is called before the
    first request.
    """
    started: Future[str] = Future()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with serving(folder, run=run, devices=devices, rules=rules, engine=engine) as api:
            if prepare is not None:
                prepare(api)
            config = uvicorn.Config(
                api.app, port=0, access_log=False, log_level="warning", lifespan="off", **WEBSOCKETS
            )
            server = uvicorn.Server(config)
            serving_task = asyncio.create_task(server.serve())
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            started.set_result(f"http://127.0.0.1:{port}")
            await over.wait()
            end_streams(api.app)
            server.should_exit = True
            await serving_task

    thread = Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        yield started.result(timeout=30)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
