"""`sessions`: the time from POST to ready of a session, with a spawner of JupyterHub as the baseline.

Both hubs run the same sessions (the same environment's `jupyterhub-singleuser`) behind the same kind of proxy, in turn
on the same nodes, and are asked in the same way, through the hub's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import click
import httpx2

from benchmarks.report import BenchmarkError, Figure, as_json, progress, show
from benchmarks.server import Served, make_environment, server
from benchmarks.sessions import baselines
from benchmarks.sessions.baselines import Hub
from benchmarks.sessions.docker_api import docker_network, until_none_runs, until_waiting

GIVE_UP_S = 300.0
OURS = "ours"
# More frequent polling would load the hub.
_LOOK_S = 0.25
# Warm-up, not measured: each node reads the image's files from its disk once.
_WARM = 6
_TURNS = {1: 4}
_TURNS_OF_MANY = 2
_NETWORK = "commonage-bench"
_SUBNET = "10.96.0.0/16"
BASELINES = {"process": ("local",), "docker": ("dockerspawner", "swarmspawner"), "swarm": ("swarmspawner",)}
"""The baseline spawners of each engine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The systems to measure: Commonage's engine, the baselines' spawners, and for containers their image and daemon.

    `reach` is this machine's address for containers. `warm`: number of warm containers.
    """

    engine: str = "process"
    baselines: tuple[str, ...] = ("local",)
    image: str = ""
    docker_url: str = "unix:///var/run/docker.sock"
    reach: str = ""
    warm: int = 0

    def flags(self) -> list[str]:
        """The flags of our server."""
        return ["--gpus", "none", "--engine", self.engine]

    def variables(self) -> dict[str, str]:
        """Settings of our server without a flag, as environment variables."""
        if self.engine == "process":
            return {}
        # Swarm spreads the baseline's sessions over its nodes.
        return {
            "COMMONAGE_DOCKER_URL": self.docker_url,
            "COMMONAGE_DOCKER_IMAGE": self.image,
            "COMMONAGE_POLICY": "spread",
            "COMMONAGE_WARM_CONTAINERS": str(self.warm),
        }

    def settle(self) -> None:
        """Wait until all containers of a round have ended, as SwarmSpawner does not, and ours wait again."""
        if "swarmspawner" in self.baselines or self.engine == "swarm":
            until_none_runs(self.docker_url, self.image)
        if self.engine == "docker" and self.warm:
            until_waiting(self.docker_url, self.warm)


@dataclass(frozen=True, slots=True)
class Round:
    """Sessions at once.

    `ready` are the seconds from POST to ready of those that came up, in order; `failed` says of each other why it did
    not; `gone` are the seconds from the first DELETE until all are gone.
    """

    ready: list[float]
    failed: list[str]
    gone: float


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= 200 for part in parts):
        raise click.BadParameter("write numbers from 1 to 200 like 1,10,30")
    return [int(part) for part in parts]


@click.command
@click.option("--at-once", "sizes", default="1,10,30", show_default=True, callback=_sizes, help="Sessions at once.")
@click.option("--engine", type=click.Choice(list(BASELINES)), default="process", show_default=True, help="Our engine.")
@click.option(
    "--baseline",
    help="Spawners of JupyterHub to compare with, or none.  [default: local for process, swarmspawner for swarm, "
    "dockerspawner,swarmspawner for docker]",
)
@click.option("--image", default="", help="Image of the sessions of both, for container engines.")
@click.option("--docker-url", default="unix:///var/run/docker.sock", show_default=True, help="A manager's daemon.")
@click.option("--reach", default="127.0.0.1", show_default=True, help="Address of this machine for containers.")
@click.option("--warm", default=30, show_default=True, help="Containers that wait for our sessions, of engine docker.")
@as_json
def sessions(sizes: list[int], engine: str, baseline: str | None, as_json: bool, **containers: Any) -> None:
    """Time from POST to ready of sessions, ours and those of a JupyterHub spawner.

    \b
    Example:
      python -m benchmarks sessions --at-once 1,10
      python -m benchmarks sessions --engine docker --baseline dockerspawner --image notebook:1 --reach 10.0.0.1
      python -m benchmarks sessions --engine swarm --baseline swarmspawner --image notebook:1 --reach 10.0.0.1
    """
    named = tuple(baseline.split(",")) if baseline else BASELINES[engine]
    wanted = () if named == ("none",) else named
    if not set(wanted) <= set(BASELINES[engine]):
        known = ", ".join(BASELINES[engine])
        raise click.UsageError(f"The baselines of engine {engine} are {known}. Use them, or --baseline none.")
    if engine != "process" and not containers["image"]:
        raise click.UsageError(f"Engine {engine} runs sessions in containers. Give their image with --image.")
    setting = Setting(engine, wanted, **containers)
    click.echo(show("Sessions, POST to ready", measure(sizes, setting), as_json=as_json))


def measure(sizes: Sequence[int], setting: Setting) -> list[Figure]:
    """For each number of sessions at once: the median and the slowest, ours and the baselines'.

    They take turns, each as often the first, as a node is now faster and now slower.
    """
    with server(*setting.flags(), variables=setting.variables()) as served, contextlib.ExitStack() as stack:
        options = {"environment": "notebook", "cpus": "0.05", "memory": "256MiB"}
        token = (served.folder / "data" / "secrets" / "hub_service_token").read_text().strip()
        hubs = {OURS: Hub(f"{served.url}/hub/api", token, options)}
        for baseline in setting.baselines:
            start_baseline = stack.enter_context(_baseline(baseline, served, setting))
            hubs[baseline] = stack.enter_context(start_baseline())
        for system, hub in hubs.items():
            progress(f"warming up, {system}")
            _one_round(hub, _WARM)
            setting.settle()
        figures: list[Figure] = []
        for size in sizes:
            rounds: dict[str, list[Round]] = {system: [] for system in hubs}
            for turn in range(_TURNS.get(size, _TURNS_OF_MANY)):
                for system in list(hubs)[:: -1 if turn % 2 else 1]:
                    rounds[system].append(_measure(hubs[system], size, system))
                    setting.settle()
            if not setting.baselines:
                figures += _figures(size, rounds[OURS], None)
            for baseline in setting.baselines:
                than = f", to {baseline}" if len(setting.baselines) > 1 else ""
                figures += _figures(size, rounds[OURS], rounds[baseline], than)
        return figures


def _figures(size: int, ours: Sequence[Round], theirs: Sequence[Round] | None, than: str = "") -> Iterator[Figure]:
    def figure(name: str, value: Callable[[Sequence[Round]], float], unit: str, how: str) -> Figure:
        return Figure(f"{size} {name}{than}", value(ours), unit, how, value(theirs) if theirs else None)

    def ready(rounds: Sequence[Round]) -> list[float]:
        return [took for one in rounds for took in one.ready]

    how = "POST to the hub's API until it says ready"
    yield figure("at once, median", lambda rounds: median(ready(rounds) or [math.nan]), "s", how)
    if size > 1:
        lasts = "the median of the rounds"
        yield figure("at once, last", lambda rounds: median([max(one.ready, default=math.nan) for one in rounds]),
            "s", f"{how}, {lasts}")  # fmt: skip
        yield figure("stopped", lambda rounds: median([one.gone for one in rounds]),
            "s", f"DELETE of all until the last is gone, {lasts}")  # fmt: skip
        yield figure("at once, failed", lambda rounds: sum(len(one.failed) for one in rounds),
            "", f"refused, failed, or took over {GIVE_UP_S:.0f} s, in {len(ours)} rounds")  # fmt: skip


@contextlib.contextmanager
def _baseline(
    baseline: str, served: Served, setting: Setting
) -> Iterator[Callable[[], contextlib.AbstractContextManager[Hub]]]:
    """Prepare the baseline; returns a context manager that starts it."""
    folder = served.folder / baseline
    names: dict[str, object] = {"docker_url": setting.docker_url, "image": setting.image, "reach": setting.reach}
    if baseline == "local":
        progress("making the environment of both")
        python = make_environment(served)
        yield lambda: baselines.jupyterhub(folder, baselines.LOCAL, python=python)
    elif baseline == "dockerspawner":
        with docker_network(setting.docker_url, f"{_NETWORK}-{baseline}", "bridge", _SUBNET) as place:
            yield lambda: baselines.jupyterhub(folder, baselines.DOCKER, network=place, **names)
    else:
        # With the engine `docker` there is one node, the manager.
        names["constraints"] = ["node.role == worker"] if setting.engine == "swarm" else []
        with docker_network(setting.docker_url, f"{_NETWORK}-{baseline}") as place:
            yield lambda: baselines.jupyterhub(folder, baselines.SWARM, network=place, **names)


def _measure(hub: Hub, size: int, system: str) -> Round:
    """Start `size` sessions at once, and stop all."""
    progress(f"{size} at once, {system}")
    done = _one_round(hub, size)
    for why in done.failed:
        progress(f"failed: {why}")
    return done


def _one_round(hub: Hub, size: int) -> Round:
    users = [f"bench{index}" for index in range(size)]
    return asyncio.run(_round(hub, users))


async def _round(hub: Hub, users: Sequence[str]) -> Round:
    headers = {"Authorization": f"token {hub.token}"}
    async with httpx2.AsyncClient(base_url=hub.api, headers=headers, timeout=60) as client:
        for user in users:
            await client.post(f"/users/{user}")
        ready, failed = await _until_ready(client, hub, users)
        began = time.perf_counter()
        await asyncio.gather(*(client.delete(f"/users/{user}/server") for user in users))
        await _until_gone(client, users)
        return Round(ready, failed, time.perf_counter() - began)


async def _until_ready(client: httpx2.AsyncClient, hub: Hub, users: Sequence[str]) -> tuple[list[float], list[str]]:
    """(seconds until ready, errors of the others): a failed session does not end the measurement."""
    since: dict[str, float] = {}
    failed: list[str] = []

    async def ask(user: str) -> None:
        began = time.perf_counter()
        asked = await client.post(f"/users/{user}/server", json=hub.options)
        if asked.status_code in (201, 202):
            since[user] = began
        else:
            failed.append(f"{user}: {asked.status_code} {asked.text[:300]}")

    ready: list[float] = []
    asking = asyncio.gather(*(ask(user) for user in users))
    while since or not asking.done():
        servers = await _servers(client) if since else {}
        for user, began in list(since.items()):
            took = time.perf_counter() - began
            if servers.get(user, {}).get("ready"):
                ready.append(took)
            elif user not in servers:
                failed.append(f"{user}: its session failed after {took:.1f} s")
            elif took > GIVE_UP_S:
                failed.append(f"{user}: not ready within {GIVE_UP_S:.0f} s")
            else:
                continue
            del since[user]
        await asyncio.sleep(_LOOK_S)
    await asking
    return ready, failed


async def _until_gone(client: httpx2.AsyncClient, users: Sequence[str]) -> None:
    give_up = time.perf_counter() + GIVE_UP_S
    while time.perf_counter() < give_up:
        left = await _servers(client)
        if not left.keys() & set(users):
            return
        await asyncio.sleep(_LOOK_S)
    raise BenchmarkError(f"the sessions of {', '.join(sorted(left))} were not stopped within {GIVE_UP_S:.0f} s")


async def _servers(client: httpx2.AsyncClient) -> dict[str, Any]:
    """The default server of each user, in one request: thirty requests would load the hub."""
    everybody = (await client.get("/users", params={"limit": 200})).json()
    return {user["name"]: user["servers"][""] for user in everybody if "" in user["servers"]}
