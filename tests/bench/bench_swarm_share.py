"""How soon who asks for a share of a GPU that is not to be had reads why, beside JupyterHub's SwarmSpawner.

    sudo .venv/bin/python tests/bench/bench_swarm_share.py

Takes root, docker.io, iptables and buildah. Makes a Swarm of network namespaces on which a whole site runs; its workers
have a card of 24 GiB each. The peer asks the same Swarm for as much as a generic resource, and waits as long as
JupyterHub does where nobody says otherwise. All ask through their hub's API, as its pages do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.acceptance.served import until
from tests.contract.dockerd import IMAGE
from tests.integration.swarm_site import CARD, WORKERS, SwarmSite, swarm_site

from commonage.cli.bench import peers
from commonage.cli.bench.docker_api import overlay
from commonage.wire.workloads import SubmitIn

NOT_THERE = ("40GiB", "2", "H100:8GiB")
_WANTS = """
c.SwarmSpawner.extra_resources_spec = {{"generic_resources": {{"VRAM": 40960}}}}
c.Spawner.start_timeout = 60
"""


def main() -> None:
    """Once each."""
    with swarm_site() as site:
        for gpus in NOT_THERE:
            refused(site, gpus)
        with all_cards_held(site):
            waits(site)
        theirs(site)


def say(who: str, gpus: str, seconds: float, what: str) -> None:
    """A line for each figure."""
    print(f"{who}, {gpus}: {what!r} after {seconds:.2f} s")


def refused(site: SwarmSite, gpus: str) -> None:
    """Ours, of what no machine has: the request is answered with why."""
    site.browser("ada")
    began = time.monotonic()
    asked = site.ask("ada", gpus=gpus)
    say("ours", gpus, time.monotonic() - began, asked.json()["message"])


@contextmanager
def all_cards_held(site: SwarmSite) -> Iterator[None]:
    """Somebody else holds every card of the site."""
    bob = site.client("bob")
    ask = SubmitIn(command=["sleep", "600"], gpus="1", array=len(WORKERS), memory="64MiB", cpus="0.1")
    held = bob.submit(ask).ids
    for one in held:
        site.runs("bob", one)
    try:
        yield
    finally:
        for one in held:
            bob.stop(one)


def waits(site: SwarmSite) -> None:
    """Ours, of what others hold: the page of who waits says why."""
    browser = site.browser("ada")
    began = time.monotonic()
    asking = threading.Thread(target=site.ask, args=("ada",), kwargs={"gpus": CARD})
    asking.start()
    what = _told(browser, "ada", lambda said: "GiB" in said["message"])
    say("ours", f"{CARD}, held by others", time.monotonic() - began, what)
    asking.join()
    browser.delete("/hub/api/users/ada/server")
    until(lambda: not site.live("ada"), 60)


def theirs(site: SwarmSite) -> None:
    """SwarmSpawner, of what no machine has: its page says nothing until the hub gives up."""
    url = site.swarm.manager.daemon.url
    names = {"docker_url": url, "image": IMAGE, "reach": "127.0.0.1"}
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="commonage-bench-"))
        names["network"] = closing.enter_context(overlay(url, "commonage-bench-peer"))
        hub = closing.enter_context(peers.peer(Path(folder, "peer"), peers.SWARM + _WANTS, **names))
        headers = {"Authorization": f"token {hub.token}"}
        root = hub.api.removesuffix("/hub/api")
        browser = closing.enter_context(httpx2.Client(base_url=root, headers=headers, timeout=300, trust_env=False))
        browser.post("/hub/api/users/ada")
        began = time.monotonic()
        asking = threading.Thread(target=browser.post, args=("/hub/api/users/ada/server",))
        asking.start()
        what = _told(browser, "ada", lambda said: bool(said.get("failed")))
        say("SwarmSpawner", "40 GiB", time.monotonic() - began, what)
        asking.join()


def _told(browser: httpx2.Client, user: str, is_enough: Callable[[dict[str, Any]], bool]) -> str:
    """The first message on the page of who waits that is enough."""
    until(lambda: browser.get(f"/hub/api/users/{user}").json()["servers"].get("", {}).get("pending"), 30)
    with browser.stream("GET", f"/hub/api/users/{user}/server/progress") as answer:
        for line in answer.iter_lines():
            if line.startswith("data:") and is_enough(said := json.loads(line.removeprefix("data:"))):
                return str(said["message"])
    raise RuntimeError("the page ended without a word")


if __name__ == "__main__":
    main()
