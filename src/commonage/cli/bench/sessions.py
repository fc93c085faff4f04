"""`commonage bench sessions`: from asking for a session to its answering, beside JupyterHub's own local spawner.

Both hubs run the same sessions (the same environment's `jupyterhub-singleuser`) behind the same kind of proxy, in turn
on the same machine, and are asked in the same way, through the hub's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from commonage.cli.bench.report import Figure, median
from commonage.cli.bench.server import free_port, server

Say = Callable[[str], None]
GIVE_UP_S = 300.0
PEER_TOKEN = "0" * 64  # of a hub that lives for a minute, on loopback
PEER_CONFIG = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = "sqlite:///{folder}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/homes/{{username}}"
c.Spawner.cmd = ["{python}", "-m", "jupyterhub.singleuser", "--allow-root"]
c.Spawner.http_timeout = 300
c.Spawner.start_timeout = 300
c.JupyterHub.concurrent_spawn_limit = 100
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikFileProviderProxy.dynamic_config_file = "{folder}/rules.toml"
c.TraefikFileProviderProxy.static_config_file = "{folder}/traefik.toml"
c.TraefikFileProviderProxy.traefik_api_url = "http://127.0.0.1:{api_port}"
c.JupyterHub.services = [{{"name": "bench", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{"name": "bench", "scopes": ["admin:users", "admin:servers"], "services": ["bench"]}}]
"""


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub to measure: its API's address and token, and what a session is asked for with."""

    api: str
    token: str
    options: dict[str, Any]


def run(sizes: Sequence[int], say: Say, peer: bool) -> list[Figure]:
    """For each number of sessions at once: the median and the slowest, ours and the peer's."""
    with server("--gpus", "none") as served:
        say("making the environment that both use")
        python = _environment(served.url, served.token, served.folder)
        options = {"environment": "notebook", "cpus": "0.05", "memory": "256MiB"}
        token = (served.folder / "data" / "secrets" / "hub_service_token").read_text().strip()
        ours = {size: _measure(Hub(f"{served.url}/hub/api", token, options), size, say, "ours") for size in sizes}
        theirs: dict[int, list[float]] = {}
        if peer:
            with _peer(served.folder / "peer", python) as hub:
                theirs = {size: _measure(hub, size, say, "peer") for size in sizes}
    return [figure for size in sizes for figure in _figures(size, ours[size], theirs.get(size))]


def _figures(size: int, ours: Sequence[float], theirs: Sequence[float] | None) -> Iterator[Figure]:
    how = "POST to the hub's API until it says ready"
    yield Figure(f"{size} at once, median", median(ours), "s", how, median(theirs) if theirs else None)
    if size > 1:
        yield Figure(f"{size} at once, last", max(ours), "s", how, max(theirs) if theirs else None)


def _environment(url: str, token: str, folder: Path) -> Path:
    """Have the notebook environment made by a job that runs in it; its interpreter."""
    argv = [sys.executable, "-m", "commonage", "run", "--url", url, "--token", token, "--no-files"]
    argv += ["--env", "notebook", "--", "python", "-c", "import sys; print('python=' + sys.executable)"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder)
    found = [line.partition("=")[2] for line in done.stdout.splitlines() if line.startswith("python=")]
    if done.returncode != 0 or not found:
        raise RuntimeError(f"the environment could not be made:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return Path(found[0])


@contextlib.contextmanager
def _peer(folder: Path, python: Path) -> Iterator[Hub]:
    """JupyterHub with its own local spawner, as one would set it up on one machine."""
    folder.mkdir()
    port, hub_port, api_port = free_port(), free_port(), free_port()
    names = {"port": port, "hub_port": hub_port, "api_port": api_port, "folder": folder, "python": python}
    config = folder / "jupyterhub_config.py"
    config.write_text(PEER_CONFIG.format(**names, token=PEER_TOKEN))
    with (folder / "peer.log").open("wb") as log:
        argv = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
        programs = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # traefik is there
        process = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True, env=programs
        )
        try:
            _await_running(folder / "peer.log", process)
            yield Hub(f"http://127.0.0.1:{port}/hub/api", PEER_TOKEN, {})
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def _await_running(log: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 60
    while "JupyterHub is now running" not in log.read_text():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the peer does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
    time.sleep(1.0)


def _measure(hub: Hub, size: int, say: Say, whose: str) -> list[float]:
    """Seconds from POST to ready of `size` sessions asked for at once, all stopped again."""
    say(f"{size} at once, {whose}")
    if size == 1:
        return [_one_round(hub, 1)[0] for _ in range(3)]
    return _one_round(hub, size)


def _one_round(hub: Hub, size: int) -> list[float]:
    users = [f"bench{index}" for index in range(size)]
    return asyncio.run(_round(hub, users))


async def _round(hub: Hub, users: Sequence[str]) -> list[float]:
    headers = {"Authorization": f"token {hub.token}"}
    async with httpx2.AsyncClient(base_url=hub.api, headers=headers, timeout=60) as client:
        for user in users:
            await client.post(f"/users/{user}")
        took = await asyncio.gather(*(_until_ready(client, hub, user) for user in users))
        await asyncio.gather(*(_until_gone(client, user) for user in users))
    return list(took)


async def _until_ready(client: httpx2.AsyncClient, hub: Hub, user: str) -> float:
    began = time.perf_counter()
    asked = await client.post(f"/users/{user}/server", json=hub.options)
    if asked.status_code not in (201, 202):
        raise RuntimeError(f"{user}: {asked.status_code} {asked.text[:300]}")
    while time.perf_counter() - began < GIVE_UP_S:
        servers = (await client.get(f"/users/{user}")).json()["servers"]
        if servers.get("", {}).get("ready"):
            return time.perf_counter() - began
        if "" not in servers:
            raise RuntimeError(f"the session of {user} failed")
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the session of {user} was not ready within {GIVE_UP_S:.0f} s")


async def _until_gone(client: httpx2.AsyncClient, user: str) -> None:
    await client.delete(f"/users/{user}/server")
    give_up = time.perf_counter() + 60
    while time.perf_counter() < give_up:
        if not (await client.get(f"/users/{user}")).json()["servers"]:
            return
        await asyncio.sleep(0.1)
