"""A portal without hub, machines or disk: the real control over a store in memory and the fake engine.

Used by the portal's unit tests; run as a program it serves a lively demo to look at while working on a page:

    python -m tests.fakes.portal --port 8765
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.responses import HTMLResponse

from commonage.control.control import Control, World
from commonage.control.settings import ControlSettings
from commonage.control.submission import Submission
from commonage.domain.environments import Environment
from commonage.domain.errors import NotFound, Unauthenticated, Unavailable
from commonage.domain.fleet import NodeReport
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import parse_gpus
from commonage.domain.usage import Prices
from commonage.domain.workloads import Kind, RetryPolicy
from commonage.gpus.simulated import Cards, SimulatedDevices
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.clock import Clock
from commonage.ports.metrics import Point, Sample
from commonage.testing.behaviour import Behaviour
from commonage.testing.fake_engine import FakeEngine
from commonage.testing.memory_store import MemoryStore

GIB = 1024
SECRET = "a secret of tests"
USER = frozenset({Scope.READ, Scope.SUBMIT})
ADMIN = frozenset(Scope)
ENVIRONMENTS = (
    Environment("notebook", "Notebook", "JupyterLab with NumPy, pandas and scikit-learn", kinds=(Kind.SESSION, Kind.JOB)),
    Environment("torch", "PyTorch", "PyTorch 2.9 with CUDA", kinds=(Kind.SESSION, Kind.JOB)),
    Environment("base", "Base", "Python and nothing else", kinds=(Kind.JOB, Kind.SERVICE)),
)


class WallClock:
    """The real time."""

    def now(self) -> float:
        import time

        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeIdentity:
    """Everybody is who their token says: `token-ann` is Ann's, `token-root` an admin's. `down` for an outage."""

    def __init__(self) -> None:
        self.down = False
        self.control: Control | None = None
        self.revoked: set[str] = set()

    async def whois(self, token: str) -> Principal | None:
        if self.down:
            raise Unavailable("the hub does not answer now; it is started again by itself, try in a few seconds")
        name = token.removeprefix("token-")
        if name == token or token in self.revoked:
            return None
        return Principal(name, ADMIN if name == "root" else USER)

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
        await self.control.work.submit(hub, ask)

    async def stop_session(self, user: str, name: str) -> None:
        """Nothing to stop."""

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> str:
        return f"token-{user}"

    async def ensure_user(self, user: str, admin: bool = False) -> None:
        """Everybody is known."""


class MemoryMetrics:
    """The metrics port, as a list."""

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

    async def latest(self, subjects: Sequence[str]) -> Sequence[Sample]:
        return [samples[-1] for (_, subject), samples in self.samples.items() if subject in subjects]

    async def tidy(self, now: float) -> None:
        """Everything is kept."""


class NoBundles:
    """The bundles port, with none."""

    async def save(self, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        raise NotImplementedError

    def path(self, digest: str) -> Path:
        raise NotFound("there is no such bundle", code="bundle-not-found")


def make_nodes(clock: Clock) -> tuple[SimulatedDevices, list[NodeReport]]:
    """Two machines with simulated cards and one without."""
    devices = SimulatedDevices(
        (Cards(2, 24 * GIB, "RTX 4090"), Cards(1, 80 * GIB, "A100")), node_name="demo", now=clock.now
    )
    cards = devices.inventory()
    return devices, [
        NodeReport("gpu-1", 16_000, 64 * GIB, tuple(cards[:2]), disk_free_mib=412 * GIB),
        NodeReport("gpu-2", 32_000, 256 * GIB, (replace(cards[2], index=0),), disk_free_mib=1730 * GIB),
        NodeReport("cpu-1", 8_000, 32 * GIB),
    ]


class Portal:
    """Everything together. `app` serves it; `engine`, `identity` and `metrics` are for the test to order about."""

    def __init__(self, clock: Clock | None = None, settings: ControlSettings | None = None) -> None:
        self.clock = clock or WallClock()
        devices, nodes = make_nodes(self.clock)
        self.devices = devices
        self.engine = FakeEngine("here", nodes, self.clock, default=Behaviour(lasts_s=None, holds_mib=640))
        self.identity = FakeIdentity()
        self.metrics = MemoryMetrics()
        self.store = MemoryStore()
        world = World(
            store=self.store, metrics=self.metrics, clock=self.clock, identity=self.identity, bundles=NoBundles(),
            devices=devices, engines=[self.engine], environments=ENVIRONMENTS, chance=random.Random(1).randrange,
        )  # fmt: skip
        self.control = Control(world, settings or ControlSettings(prices=Prices(0.05, 0.01, 0.0, "EUR")))
        self.identity.control = self.control
        self.auth = PortalAuth(self.identity, self.clock, SECRET)
        self.app = FastAPI()
        self.app.add_route("/hub/sign-in", _sign_in_page)
        self.app.include_router(create_router(self.control, self.auth))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Portal]:
        """With all loops of control at work."""
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


# --- the demo -----------------------------------------------------------------------------------------------------


def _job(name: str, gpus: str | None, **fields: Any) -> Submission:
    command = fields.pop("command", ("python", f"{name.split()[0]}.py"))
    return Submission(Kind.JOB, command, name=name, gpu=parse_gpus(gpus), **fields)


async def populate(portal: Portal, ended: int) -> None:
    """People at work: sessions, jobs that run, wait and have failed."""
    engine, work = portal.engine, portal.control.work
    hub = Principal("hub", ADMIN)
    people = {name: Principal(name, USER) for name in ("ann", "bob", "carol", "dmitri", "eve")}
    engine.behave(Behaviour(exit_code=1, prints=("Traceback (most recent call last):", "ValueError: shapes (64,) and (32,)")), name="sweep bad")  # fmt: skip
    engine.behave(Behaviour(start_delay_s=600, start_detail="preparing environment PyTorch: 12 of 31 packages"), name="embed corpus")  # fmt: skip
    for number in range(ended):
        who = people[("ann", "bob", "carol")[number % 3]]
        engine.behave(Behaviour(lasts_s=0.0, exit_code=(0, 0, 0, 0, 3)[number % 5]), name=f"experiment {number}")
        await work.submit(who, _job(f"experiment {number}", None, cpus_milli=200, memory_mib=64))
    await asyncio.sleep(2 if ended < 200 else 8)
    for owner, name, gpus, environment in (
        ("ann", "", "12GiB", "notebook"), ("ann", "diffusion", "40GiB", "torch"), ("carol", "", "6GiB", "notebook"),
        ("dmitri", "", "16GiB", "torch"),
    ):  # fmt: skip
        await work.submit(hub, Submission(Kind.SESSION, name=name, owner=owner, environment=environment, gpu=parse_gpus(gpus), time_limit_s=4 * 3600))  # fmt: skip
    await asyncio.sleep(0.5)
    await work.submit(people["bob"], _job("train resnet50", "24GiB", time_limit_s=5400, cpus_milli=4000, memory_mib=16 * GIB, environment="torch"))  # fmt: skip
    await work.submit(people["ann"], _job("finetune llama", "8GiB", time_limit_s=7200, cpus_milli=2000, memory_mib=8 * GIB))  # fmt: skip
    await work.submit(people["ann"], _job("embed corpus", "4GiB"))
    await work.submit(people["ann"], _job("sweep bad", None, retry=RetryPolicy(2, 5.0)))
    await asyncio.sleep(0.5)
    await work.submit(people["eve"], _job("render movie", "20GiB", time_limit_s=1800))
    waits = await work.submit(people["ann"], _job("train big model", "48GiB", time_limit_s=3600))
    await work.submit(people["bob"], _job("evaluate", "1"))
    from commonage.domain.workloads import Dependency

    after = (Dependency(waits.workloads[0].id),)
    await work.submit(people["ann"], _job("report", None, depends_on=after, command=("sh", "-c", "python plot.py | tee plots.txt")))  # fmt: skip


async def chatter(portal: Portal) -> None:
    """Running jobs print and use memory."""
    step = 0
    while True:
        step += 1
        for one in portal.control.board:
            if one.attempt and one.attempt.id in portal.engine.world.logs and one.state == "running":
                loss = 2.3 / (1 + step / 40) + random.random() / 20
                portal.engine.say(one.attempt.id, f"epoch {step // 20:3d} step {step:5d}  loss {loss:.4f}  \x1b[32mlr 3.0e-04\x1b[0m  {random.randint(300, 420)} samples/s")  # fmt: skip
        await asyncio.sleep(0.7)


async def _backdate(portal: Portal) -> None:
    """An hour of measurements, so that charts are not empty."""
    now = portal.clock.now()
    samples = []
    for one in list(portal.control.board):
        if one.attempt is None:
            continue
        for index in range(240):
            at, subject = now - 5 * (240 - index), f"attempt:{one.attempt.id}"
            wave = random.random() / 8
            share = sum(share.memory_mib for share in one.attempt.lease.shares)
            ramp = min(1.0, index / 30)
            samples += [
                Sample("cpu_cores", subject, at, ramp * (0.7 + wave)), Sample("memory_mib", subject, at, 400 + 300 * ramp + 40 * wave),
                Sample("gpu_utilisation", subject, at, ramp * (0.75 + wave)), Sample("gpu_memory_mib", subject, at, share * ramp * (0.8 + wave / 4)),
            ]  # fmt: skip
        one_lease = one.attempt.lease
        object.__setattr__(one_lease, "at", now - 1200)
    for device in portal.devices.inventory():
        for index in range(720):
            at = now - 5 * (720 - index)
            level = 0.5 + 0.3 * random.random() + (0.1 if index % 300 > 150 else -0.2)
            samples += [Sample("gpu_utilisation", f"device:{device.uuid}", at, level), Sample("gpu_memory_mib", f"device:{device.uuid}", at, device.memory_mib * (0.4 + 0.3 * (index > 300)))]  # fmt: skip
    await portal.metrics.write(samples)


async def serve(port: int, ended: int) -> None:
    """Serve until interrupted."""
    import uvicorn

    portal = Portal()
    async with portal.running():
        await populate(portal, ended)
        await _backdate(portal)
        talking = asyncio.create_task(chatter(portal))
        config = uvicorn.Config(portal.app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
        print(f"http://127.0.0.1:{port}/services/commonage/", flush=True)
        await uvicorn.Server(config).serve()
        talking.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--ended", type=int, default=40)
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.ended))
