"""`sites`: a control plane with a hundred appliances over their links, and a notebook through the tunnel of one.

The appliances are simulated in a process of their own: real joins, site agents and links, but an engine that runs
nothing. One more is a real site agent with the process engine, for starts, cells and downloads. It ends before the
restarts: on one machine, its gateway and the hub would listen at the same port.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import click
import httpx2

from benchmarks.connection import Connection
from benchmarks.report import BenchmarkError, Figure, as_json, percentile, progress, show
from benchmarks.server import Installation, Served
from benchmarks.sites import notebook, processes
from benchmarks.sites.notebook import Way
from benchmarks.sites.simulated import CPUS_MILLI, MEMORY_MIB
from commonage.domain.nodes import LOCAL_SITE
from commonage.sdk import AsyncClient
from commonage.server.processes.ports import free_port
from commonage.wire.workloads import SubmitIn

REAL = "real"
"""The site of the appliance with the process engine."""
_WITHIN_S = 180.0
_SESSION_WITHIN_S = 900.0  # the first one makes its environment
_SETTLE_S = 15.0
_LONG_S = 86_400
_PAUSE_S = 0.15
_SHORT: dict[str, Any] = {
    "kind": "job", "command": ["sleep", "0.05"], "cpus": "10m", "memory_mib": 16, "name": "short"
}  # fmt: skip
_SESSION = {"environment": "notebook", "cpus": "0.5", "memory": "512MiB"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How many of each, and how long. Without cells, no notebook is started."""

    appliances: int
    gpus: int
    sample_every: float
    seconds: float
    restarts: int
    submits: int
    cells: int
    downloads: int
    megabytes: int

    @property
    def names(self) -> list[str]:
        return [f"site-{number:03}" for number in range(self.appliances)]

    @property
    def jobs(self) -> int:
        return self.appliances * self.gpus


@click.command
@click.option("--appliances", type=click.IntRange(1, 500), default=100, show_default=True, help="Simulated appliances.")
@click.option("--gpus", type=click.IntRange(1, 64), default=8, show_default=True, help="GPUs of each, all in use.")
@click.option("--sample-every", type=click.FloatRange(1), default=10.0, show_default=True, help="Seconds.")
@click.option("--seconds", type=click.FloatRange(1), default=120.0, show_default=True, help="Time to count CPU time.")
@click.option("--restarts", type=click.IntRange(0), default=3, show_default=True, help="Restarts of the control plane.")
@click.option("--submits", type=click.IntRange(1), default=40, show_default=True, help="Jobs, one after the other.")
@click.option("--cells", type=click.IntRange(0), default=200, show_default=True, help="Cells each way. 0: no notebook.")
@click.option("--downloads", type=click.IntRange(1), default=9, show_default=True, help="Downloads each way.")
@click.option("--megabytes", type=click.IntRange(1), default=100, show_default=True, help="Size of a download.")
@as_json
def sites(as_json: bool, **sizes: Any) -> None:
    """Cost, reconnects, starts, cells and downloads of appliances over the site link.

    \b
    Example:
      python -m benchmarks sites
      python -m benchmarks sites --appliances 20 --cells 0
    """
    plan = Plan(**sizes)
    with tempfile.TemporaryDirectory(prefix="commonage-bench-") as folder:
        figures = asyncio.run(_all(Path(folder), plan))
    click.echo(show(f"{plan.appliances} appliances with {plan.gpus} GPUs each", figures, as_json=as_json))


async def _all(folder: Path, plan: Plan) -> list[Figure]:
    variables = {
        "COMMONAGE_SITE_ADDRESS": "127.0.0.1",
        "COMMONAGE_JOINING_BIND": "127.0.0.1",
        "COMMONAGE_JOINING_PORT": str(free_port()),
        "COMMONAGE_SITES_BIND": "127.0.0.1",
        "COMMONAGE_SITES_PORT": str(free_port()),
        "COMMONAGE_SAMPLE_EVERY_S": str(plan.sample_every),
    }
    installation = Installation(folder, "--gpus", "none", variables=variables)
    with ExitStack() as closing:
        closing.callback(installation.stop)
        installation.start()
        served = installation.served()
        async with AsyncClient(served.url, served.token) as client:
            await _join(client, folder, plan, closing)
            await _fill(client, plan)
            figures = await _cost(served, plan)
            token = (await client.site_token(REAL)).token
            with processes.real(folder / REAL, token, plan.sample_every):
                await _until(lambda: _linked(client, plan.appliances + 1), "the real appliance is linked")
                figures += await _starts(served, client, plan)
                if plan.cells:
                    try:
                        figures += await _tunnel(served, client, plan)
                    finally:  # an appliance leaves its workloads running
                        await _stop_sessions(client)
        return figures + await _reconnects(installation, plan)


async def _until(condition: Callable[[], Awaitable[bool]], what: str, within_s: float = _WITHIN_S) -> None:
    give_up = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not within {within_s:.0f} s: {what}")
        await asyncio.sleep(0.5)


# --- appliances -------------------------------------------------------------------------------------------------------


async def _join(client: AsyncClient, folder: Path, plan: Plan, closing: ExitStack) -> None:
    progress(f"{plan.appliances} appliances join")
    tokens = [(name, (await client.site_token(name)).token) for name in plan.names]
    closing.enter_context(processes.simulated(folder / "appliances", tokens, plan.gpus, plan.sample_every))
    await _until(lambda: _linked(client, plan.appliances), "all appliances are linked")


async def _linked(client: AsyncClient, count: int) -> bool:
    return sum(one.state == "ready" and one.site != LOCAL_SITE for one in await client.nodes()) == count


async def _fill(client: AsyncClient, plan: Plan) -> None:
    """A job on each GPU, which together take all CPUs: what follows runs elsewhere."""
    progress(f"{plan.jobs} jobs start")
    for name in plan.names:
        await client.submit(
            SubmitIn(
                kind="job", name="busy", command=["sleep", str(_LONG_S)], gpus="1", cpus=f"{CPUS_MILLI // plan.gpus}m",
                memory_mib=MEMORY_MIB // plan.gpus, array=plan.gpus, on={"site": name}, time_limit_s=None,
            )
        )  # fmt: skip

    async def all_run() -> bool:
        return await _running(client) == plan.jobs

    await _until(all_run, "all jobs run")


async def _running(client: AsyncClient) -> int:
    return (await client.info()).counts.get("running", 0)


# --- the control plane -----------------------------------------------------------------------------------------------


async def _cost(served: Served, plan: Plan) -> list[Figure]:
    progress(f"{plan.seconds:.0f} s of links and samples")
    await asyncio.sleep(_SETTLE_S)
    cpu_s, began = served.cpu_s, time.monotonic()
    await asyncio.sleep(plan.seconds)
    cores = (served.cpu_s - cpu_s) / (time.monotonic() - began)
    how = f"links up, {plan.jobs} jobs run, samples every {plan.sample_every:g} s; over {plan.seconds:.0f} s"
    return [
        Figure("control plane, CPU", cores, "cores", f"its own process; {how}"),
        Figure("control plane, memory", served.resident_mib * 1024**2 / 1e6, "MB", "resident, of the same process"),
    ]


async def _starts(served: Served, client: AsyncClient, plan: Plan) -> list[Figure]:
    """Submit to running of jobs on the idle appliance and on the control plane's own node, in turn."""
    progress(f"{plan.submits} jobs, one after the other")
    taken: dict[str, list[float]] = {REAL: [], LOCAL_SITE: []}
    running: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    async def listen() -> None:
        async for event in client.events():
            if event.kind == "running" and event.workload_id:
                running.put_nowait((event.workload_id, time.perf_counter()))

    async with Connection(served.url, served.token) as connection:
        listener = asyncio.create_task(listen())
        await asyncio.sleep(1.0)
        for number in range(plan.submits + 1):
            for site, times in taken.items():
                began = time.perf_counter()
                made = await connection.json("POST", "/workloads", {**_SHORT, "on": {"site": site}})
                async with asyncio.timeout(_WITHIN_S):
                    while (started := await running.get())[0] != made["workload"]["id"]:
                        pass
                if number:  # the first one makes the environment
                    times.append(started[1] - began)
                await asyncio.sleep(_PAUSE_S)
        listener.cancel()
    return starts_figures(taken[REAL], taken[LOCAL_SITE])


def starts_figures(appliance: Sequence[float], local: Sequence[float]) -> list[Figure]:
    """From the seconds of each job."""
    how = f"real site agent, process engine, idle; until the event arrives; {len(appliance)} jobs; baseline: no link"
    return [
        Figure("submit to running, p50", median(appliance) * 1000, "ms", how, median(local) * 1000),
        Figure("submit to running, p95", percentile(appliance, 0.95) * 1000, "ms", "the same",
            percentile(local, 0.95) * 1000),
    ]  # fmt: skip


# --- the tunnel ------------------------------------------------------------------------------------------------------


async def _tunnel(served: Served, client: AsyncClient, plan: Plan) -> list[Figure]:
    """A session on the appliance and one on the control plane's own node; each has a node to itself meanwhile."""
    nodes = {one.site: one.name for one in await client.nodes() if one.site in (REAL, LOCAL_SITE)}
    ways = {}
    for site, other in ((REAL, LOCAL_SITE), (LOCAL_SITE, REAL)):
        progress(f"a session on {site}")
        await client.drain(other, nodes[other])
        ways[site] = await _session(served, client, f"bench-{site}")
        await client.resume(other, nodes[other])
    progress(f"{plan.cells} cells each way")
    through, direct = await notebook.cells([ways[REAL], await _direct(ways[REAL])], plan.cells)
    progress(f"{plan.downloads} downloads of {plan.megabytes} MB each way")
    for way in ways.values():
        await notebook.make_file(way, plan.megabytes * 1_000_000)
    rates: dict[str, list[float]] = {site: [] for site in ways}
    cpu_s = []
    for _ in range(plan.downloads):
        for site, way in ways.items():
            before = served.cpu_s
            size, seconds = await asyncio.to_thread(notebook.download, way)
            if site == REAL:
                cpu_s.append(served.cpu_s - before)
            if size != plan.megabytes * 1_000_000:
                raise BenchmarkError(f"a download had {size} bytes")
            rates[site].append(size / 1e6 / seconds)
    return [
        *tunnel_figures(through, direct, rates[REAL], rates[LOCAL_SITE]),
        Figure("download, control plane's CPU", median(cpu_s) * 1000, "ms", "for a download through the tunnel"),
    ]


def tunnel_figures(
    through: Sequence[float], direct: Sequence[float], rates: Sequence[float], without: Sequence[float]
) -> list[Figure]:
    """From the seconds of each cell, and the MB/s of each download."""
    cell, cell_direct = median(through) * 1000, median(direct) * 1000
    how = f"median of {len(through)}; proxy, tunnel, kernel, and back; baseline: at the Jupyter server's own port"
    return [
        Figure("notebook cell, p50", cell, "ms", how, cell_direct),
        Figure("notebook cell, slower by", cell - cell_direct, "ms", "the same; difference of the medians"),
        Figure("download", median(rates), "MB/s", f"median of {len(rates)}, through the proxy; baseline: no tunnel",
            median(without)),
    ]  # fmt: skip


async def _session(served: Served, client: AsyncClient, user: str) -> Way:
    """A running session of this user, as the proxy serves it."""
    secret = (served.folder / "data" / "secrets" / "hub_service_token").read_text().strip()
    headers = {"Authorization": f"token {secret}"}
    async with httpx2.AsyncClient(base_url=f"{served.url}/hub/api", headers=headers, timeout=60) as hub:
        await hub.post(f"/users/{user}")
        token = (await hub.post(f"/users/{user}/tokens", json={"note": "benchmark", "expires_in": 86_400})).json()
        asked = await hub.post(f"/users/{user}/server", json=_SESSION)
        if asked.status_code not in (201, 202):
            raise BenchmarkError(f"no session: {asked.status_code} {asked.text[:500]}")

        async def ready() -> bool:
            shown = (await hub.get(f"/users/{user}")).json()
            if not shown["servers"]:
                raise BenchmarkError(f"the session of {user} failed: see {served.folder}/data/logs")
            return bool(shown["servers"][""]["ready"])

        await _until(ready, f"the session of {user} is ready", _SESSION_WITHIN_S)
    [session] = [one async for one in client.workloads(owner=user, kind="session", state=["running"])]
    url = urlsplit(session.url or "")
    return Way(url.port or 0, url.path, url.netloc, token["token"])


async def _stop_sessions(client: AsyncClient) -> None:
    live = client.workloads(kind="session", state=["queued", "starting", "running"])
    for workload_id in [one.id async for one in live]:
        await client.stop(workload_id, "the benchmark is over")
        await client.wait(workload_id, _WITHIN_S)


async def _direct(way: Way) -> Way:
    """The same server at its own port, which its kernels know."""
    async with notebook.kernel(way) as kernel:
        printed = await kernel.run("import os; print(os.environ['JUPYTERHUB_SERVICE_URL'])")
    port = urlsplit(printed.strip()).port
    return replace(way, port=port or 0, host=f"127.0.0.1:{port}")


# --- restarts --------------------------------------------------------------------------------------------------------


async def _reconnects(installation: Installation, plan: Plan) -> list[Figure]:
    linked, answers = [], []
    jobs = plan.jobs
    for number in range(plan.restarts):
        progress(f"restart {number + 1} of {plan.restarts}")
        await asyncio.to_thread(installation.stop, signal.SIGTERM)
        began = time.time()
        await asyncio.to_thread(installation.start)
        answers.append(time.time() - began)
        served = installation.served()
        async with AsyncClient(served.url, served.token) as client:
            linked.append(await _all_linked(client, plan) - began)
            jobs = min(jobs, await _running(client))
    if not linked:
        return []
    how = f"from the start of its process until the last of {plan.appliances} is linked; the slowest of"
    return [
        Figure("reconnect of all", max(linked), "s", f"{how} {len(linked)} restarts"),
        Figure("control plane answers again", max(answers), "s", "the same restarts"),
        Figure("jobs lost by restarts", plan.jobs - jobs, "", f"of {plan.jobs}"),
    ]


async def _all_linked(client: AsyncClient, plan: Plan) -> float:
    """When the last of them was linked (unix seconds)."""
    since: list[float] = []

    async def linked() -> bool:
        since[:] = [one.since for one in await client.sites() if one.state == "connected" and one.since]
        return len(since) == plan.appliances

    await _until(linked, "all appliances are linked again")
    return max(since)
