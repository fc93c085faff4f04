"""`local-swarm`: the benchmarks `sessions` and `swarm` on a Swarm of one manager and three workers on this machine.

The nodes are network namespaces with a Docker daemon each. Our server and the baseline run in the manager's namespace,
sessions and jobs on the workers. `local-docker`: the benchmark `sessions` on such a manager alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import quote

import click
from tests.contract.harness.dockerd import minimal_image
from tests.contract.harness.swarm import Swarm

from benchmarks.sessions.notebook_image import PATH, notebook_image

WORKERS = 3
IMAGE = "commonage-bench:1"


@click.command("local-swarm", context_settings={"ignore_unknown_options": True})
@click.argument("benchmark", type=click.Choice(["sessions", "swarm"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def local_swarm(benchmark: str, options: Sequence[str]) -> None:
    """Make a Swarm on this machine, run the benchmark on its manager, and remove the Swarm.

    It needs root, docker.io and iptables. The options are those of the benchmark, without image and addresses.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks local-swarm sessions --at-once 1,10,30
      sudo .venv/bin/python -m benchmarks local-swarm swarm --count 200 --json
    """
    needs_notebook = benchmark == "sessions"
    image = notebook_image() if needs_notebook else minimal_image()
    swarm = Swarm(WORKERS)
    try:
        swarm.start(image, IMAGE, changes=f"&changes={quote(f'ENV PATH={PATH}')}" if needs_notebook else "")
        manager = swarm.manager
        # Workloads run on the workers alone, ours and the baseline's.
        node = swarm.nodes()[manager.name]
        spec = {**node["Spec"], "Availability": "drain"}
        version = node["Version"]["Index"]
        manager.daemon.ask("POST", f"/nodes/{node['ID']}/update?version={version}", spec)
        click.echo(json.dumps({name: one["Status"]["State"] for name, one in swarm.nodes().items()}), err=True)
        command = [sys.executable, "-m", "benchmarks", benchmark, "--image", IMAGE]
        command += ["--docker-url", manager.daemon.url]
        command += ["--engine", "swarm", "--reach", manager.address] if needs_notebook else []
        ended = subprocess.run([*manager.inside(), *command, *options], check=False)
    finally:
        swarm.remove()
    sys.exit(ended.returncode)


@click.command("local-docker", context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def local_docker(options: Sequence[str]) -> None:
    """Make a Docker daemon on this machine, run `sessions` with engine docker on it, and remove it.

    It needs root, docker.io and iptables. The daemon is a Swarm of one node too, for SwarmSpawner. The options are
    those of `sessions`, without engine, image and addresses.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks local-docker --at-once 1,30
    """
    image = notebook_image()
    swarm = Swarm(0)
    try:
        swarm.start(image, IMAGE, changes=f"&changes={quote(f'ENV PATH={PATH}')}")
        manager = swarm.manager
        command = [sys.executable, "-m", "benchmarks", "sessions", "--engine", "docker", "--image", IMAGE]
        command += ["--docker-url", manager.daemon.url, "--reach", manager.address]
        ended = subprocess.run([*manager.inside(), *command, *options], check=False)
    finally:
        swarm.remove()
    sys.exit(ended.returncode)
