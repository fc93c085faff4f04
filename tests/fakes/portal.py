"""A portal without hub, nodes or disk: the real control over a store in memory and the fake engine.

Used by the portal's unit tests, and by `tests.fakes.portal_demo` to look at pages while working on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.responses import HTMLResponse
from tests.fakes.bundles import MemoryBundles
from tests.fakes.hub_users import HubUsers

from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Unauthenticated, Unavailable
from commonage.domain.images import Environment
from commonage.domain.nodes import NodeReport
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import parse_gpus
from commonage.domain.usage import Prices
from commonage.domain.volumes import Volume, VolumeKind
from commonage.domain.workloads import Kind
from commonage.gpu.simulated import SimulatedDevices, SimulatedSpec
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.clock import Clock
from commonage.ports.files import Files
from commonage.ports.identity import IssuedToken
from commonage.ports.joining import Joining
from commonage.ports.materials import MaterialStorage
from commonage.ports.metrics import Metrics, Point, Sample
from commonage.ports.sites import Sites
from commonage.server.bootstrap import SystemClock
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.engine import FakeEngine
from commonage.testing.fakes.store import MemoryStore

GIB = 1024
SECRET = "a secret of tests"
USER = frozenset({Scope.READ, Scope.SUBMIT})
ADMIN = frozenset(Scope)
ENVIRONMENTS = (
    Environment(
        "notebook", "Notebook", "JupyterLab with NumPy, pandas and scikit-learn", kinds=(Kind.SESSION, Kind.JOB)
    ),
    Environment("torch", "PyTorch", "PyTorch 2.9 with CUDA", kinds=(Kind.SESSION, Kind.JOB)),
    Environment("base", "Base", "Python and nothing else", kinds=(Kind.JOB, Kind.SERVICE)),
)


class FakeIdentity(HubUsers):
    """Everybody is who their token says: `token-ann` is Ann's, `token-root` an admin's. `down` for an outage."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.control: Control | None = None
        self.revoked: set[str] = set()
        self.shared: list[tuple[str, str, str]] = []
        self.groups: dict[str, tuple[str, ...]] = {}

    async def whois(self, token: str) -> Principal | None:
        if self.down:
            raise Unavailable("the hub does not answer now; it is started again by itself, try in a few seconds")
        name = token.removeprefix("token-")
        if name == token or token in self.revoked:
            return None
        return Principal(name, ADMIN if name == "root" else USER, self.groups.get(name, ()))

    def authorize_url(self, state: str) -> str:
        return f"/hub/sign-in?state={quote(state)}"

    async def exchange(self, code: str) -> str:
        if not code.startswith("code-"):
            raise Unauthenticated("this sign-in is no longer valid; sign in again")
        return code.replace("code-", "token-")

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        assert self.control is not None
        hub = Principal("hub", ADMIN)
        ask = Submission(
            Kind.SESSION, name=name, owner=user, environment=options["environment"],
            gpu=parse_gpus(options.get("gpus")), key=options["key"],
        )  # fmt: skip
        await self.control.workloads.submit(hub, ask)

    async def stop_session(self, user: str, name: str) -> None:
        pass

    async def share_session(self, user: str, name: str, visitor: str) -> None:
        self.shared.append((user, name, visitor))

    async def expires_at(self, token: str) -> float | None:
        return None

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> IssuedToken:
        return IssuedToken("a1", f"token-{user}", time.time() + (expires_s or 3600))

    async def revoke_token(self, user: str, token_id: str) -> None:
        self.revoked.add(f"token-{user}")

    async def ensure_user(self, user: str) -> None:
        pass


class MemoryMetrics(Metrics):
    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], list[Sample]] = {}

    async def write(self, samples: Sequence[Sample]) -> None:
        for one in samples:
            kept = self.samples.setdefault((one.metric, one.subject), [])
            kept.append(one)
            kept.sort(key=lambda sample: sample.at)

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        found = [one for one in self.samples.get((metric, subject), ()) if since <= one.at < until]
        step = max(1, len(found) // points)
        return [Point(one.at, one.value, one.value, one.value) for one in found[::step]]


def make_nodes(clock: Clock) -> tuple[SimulatedDevices, list[NodeReport]]:
    """Two nodes with simulated GPUs and one without."""
    devices = SimulatedDevices(
        (SimulatedSpec(2, 24 * GIB, "RTX 4090"), SimulatedSpec(1, 80 * GIB, "A100")), node_name="demo", now=clock.now
    )
    gpus = devices.inventory()
    return devices, [
        NodeReport("gpu-1", 16_000, 64 * GIB, tuple(gpus[:2]), disk_free_mib=412 * GIB),
        NodeReport("gpu-2", 32_000, 256 * GIB, (replace(gpus[2], index=0),), disk_free_mib=1730 * GIB),
        NodeReport("cpu-1", 8_000, 32 * GIB),
    ]


VOLUMES = (
    Volume("datasets", "Shared data sets", "of all labs", source="/srv/datasets"),
    Volume("results", "Results", source="/srv/results/{user}", writable=True),
    Volume("scratch", "Scratch on the node", kind=VolumeKind.SCRATCH, writable=True),
)


class Portal:
    """Control plane and portal. `app` serves it; tests control `engine`, `identity` and `metrics`."""

    def __init__(
        self,
        clock: Clock | None = None,
        settings: ControlSettings | None = None,
        sites: Sites | None = None,
        joining: Mapping[str, Joining] = MappingProxyType({}),
        files: Files | None = None,
        materials: MaterialStorage | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        devices, nodes = make_nodes(self.clock)
        self.devices = devices
        self.engine = FakeEngine("local", nodes, self.clock, default=Behaviour(lasts_s=None, holds_mib=640))
        self.identity = FakeIdentity()
        self.metrics = MemoryMetrics()
        self.store = MemoryStore()
        world = Adapters(
            store=self.store, metrics=self.metrics, clock=self.clock, identity=self.identity, bundles=MemoryBundles(),
            devices=devices, engines=Engines([self.engine]), environments=ENVIRONMENTS,
            chance=random.Random(1).randrange, sites=sites, joining=joining, files=files, materials=materials,
        )  # fmt: skip
        usual = ControlSettings(prices=Prices(0.05, 0.01, 0.0, "EUR"), volumes=VOLUMES)
        self.control = Control(world, settings or usual)
        self.identity.control = self.control
        self.auth = PortalAuth(self.identity, self.clock, SECRET)
        self.app = FastAPI()
        self.app.add_route("/hub/sign-in", _sign_in_page)
        self.app.include_router(create_router(self.control, self.auth))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Portal]:
        await self.store.open()
        await self.control.open()
        loops = asyncio.create_task(self.control.run())
        try:
            yield self
        finally:
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)
            await self.control.close()


async def _sign_in_page(request: Any) -> HTMLResponse:
    state = quote(request.query_params["state"])
    back = f"/services/commonage/oauth_callback?state={state}&code=code-"
    names = "".join(f'<p><a href="{back}{name}">{name}</a></p>' for name in ("ann", "bob", "root"))
    return HTMLResponse(f"<h1>Who are you?</h1>{names}")
