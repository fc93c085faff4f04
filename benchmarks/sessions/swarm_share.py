"""`swarm-share`: time until a user reads why a GPU share is not available, with SwarmSpawner as the baseline.

A whole site runs on a Swarm of network namespaces; its workers have a simulated GPU of 24 GiB each. The baseline asks
the same Swarm for as much as a generic resource, and waits as long as JupyterHub does by default. All requests go
through the hub's API, as those of its pages do.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import httpx2
from tests.contract.harness.dockerd import IMAGE
from tests.fakes.waiting import wait_until
from tests.integration.swarm_site import DEVICE, WORKERS, SwarmSite, swarm_site

from benchmarks.report import BenchmarkError, Figure, as_json, progress, show
from benchmarks.sessions import baselines
from benchmarks.sessions.docker_api import docker_network
from commonage.wire.workloads import SubmitIn

NOT_AVAILABLE = ("40GiB", "2", "H100:8GiB")
_REQUEST = """
c.SwarmSpawner.extra_resources_spec = {{"generic_resources": {{"VRAM": 40960}}}}
c.Spawner.start_timeout = 60
"""


@click.command("swarm-share")
@as_json
def swarm_share(as_json: bool) -> None:
    """Time until a user reads why a session with the requested GPU share does not start.

    It needs root, docker.io, iptables and buildah; the Swarm is made of network namespaces on this machine.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks swarm-share
    """
    figures = []
    with swarm_site() as site:
        for gpus in NOT_AVAILABLE:
            progress(f"{gpus}, which no node has")
            figures.append(_refused(site, gpus))
        progress(f"{DEVICE}, which others hold")
        with _all_gpus_held(site):
            figures.append(_waits(site))
        progress("40 GiB as a generic resource of SwarmSpawner")
        figures.append(_swarmspawner(site))
    click.echo(show("A GPU share that is not available", figures, as_json=as_json))


def _refused(site: SwarmSite, gpus: str) -> Figure:
    """No node has the share: the response contains the reason."""
    site.browser("ada")
    began = time.monotonic()
    answer = site.ask("ada", gpus=gpus)
    return Figure(gpus, time.monotonic() - began, "s", answer.json()["message"])


@contextmanager
def _all_gpus_held(site: SwarmSite) -> Iterator[None]:
    """Inside the context, another user holds every GPU of the site."""
    bob = site.client("bob")
    request = SubmitIn(command=["sleep", "600"], gpus="1", array=len(WORKERS), memory_mib=64, cpus="0.1")
    held = bob.submit(request).ids
    for one in held:
        site.runs("bob", one)
    try:
        yield
    finally:
        for one in held:
            bob.stop(one)


def _waits(site: SwarmSite) -> Figure:
    """Other users hold the share: the progress page shows the reason."""
    browser = site.browser("ada")
    began = time.monotonic()
    request = threading.Thread(target=site.ask, args=("ada",), kwargs={"gpus": DEVICE})
    request.start()
    message = _message(browser, "ada", lambda event: "GiB" in event["message"])
    took = time.monotonic() - began
    request.join()
    browser.delete("/hub/api/users/ada/server")
    wait_until(lambda: not site.live("ada"))
    return Figure(f"{DEVICE}, held by others", took, "s", message)


def _swarmspawner(site: SwarmSite) -> Figure:
    """No node has the share: SwarmSpawner's page shows nothing until the hub times out."""
    url = site.swarm.manager.daemon.url
    names = {"docker_url": url, "image": IMAGE, "reach": "127.0.0.1", "constraints": ["node.role == worker"]}
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="commonage-bench-"))
        names["network"] = closing.enter_context(docker_network(url, "commonage-bench-baseline"))
        hub = closing.enter_context(baselines.jupyterhub(Path(folder, "baseline"), baselines.SWARM + _REQUEST, **names))
        headers = {"Authorization": f"token {hub.token}"}
        root = hub.api.removesuffix("/hub/api")
        browser = closing.enter_context(httpx2.Client(base_url=root, headers=headers, timeout=300, trust_env=False))
        browser.post("/hub/api/users/ada")
        began = time.monotonic()
        request = threading.Thread(target=browser.post, args=("/hub/api/users/ada/server",))
        request.start()
        message = _message(browser, "ada", lambda event: bool(event.get("failed")))
        took = time.monotonic() - began
        request.join()
    return Figure("40GiB as a generic resource of SwarmSpawner", took, "s", message)


def _message(browser: httpx2.Client, user: str, is_enough: Callable[[dict[str, Any]], bool]) -> str:
    """The first message of the progress page that satisfies `is_enough`."""
    wait_until(lambda: browser.get(f"/hub/api/users/{user}").json()["servers"].get("", {}).get("pending"), within_s=30)
    with browser.stream("GET", f"/hub/api/users/{user}/server/progress") as answer:
        for line in answer.iter_lines():
            if line.startswith("data:") and is_enough(event := json.loads(line.removeprefix("data:"))):
                return str(event["message"])
    raise BenchmarkError(f"the progress of {user}'s session ended without a message")
