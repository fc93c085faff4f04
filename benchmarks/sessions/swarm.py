"""`swarm`: no-op jobs on a Docker Swarm, with plain services that do the same as the baseline.

Plain services are the lower bound: the time that the Swarm itself takes. Each service of Commonage is on its tenant's
network, so they are on one, too. Both run on the same workers, in turn.
"""

from __future__ import annotations

import asyncio
import time

import click

from benchmarks.control.control import NO_OP, through
from benchmarks.report import Figure, as_json, progress, show
from benchmarks.server import server
from benchmarks.sessions.docker_api import docker_network, services_through
from benchmarks.sessions.sessions import Setting

_COMMAND = ("/bin/sh", "-c", "true")
_CLIENTS = 10
_BETWEEN_S = 5.0
_NETWORK = "commonage-bench-floor"


@click.command
@click.option("--count", type=click.IntRange(1), default=200, show_default=True, help="No-op jobs.")
@click.option("--image", required=True, help="An image with a shell.")
@click.option("--docker-url", default="unix:///var/run/docker.sock", show_default=True, help="A manager's daemon.")
@as_json
def swarm(count: int, image: str, docker_url: str, as_json: bool) -> None:
    """Time for no-op jobs on a Docker Swarm, and for plain services that do the same.

    \b
    Example:
      python -m benchmarks swarm --image debian:12
    """
    click.echo(show("No-op jobs on a Swarm", measure(count, image, docker_url), as_json=as_json))


def measure(count: int, image: str, docker_url: str) -> list[Figure]:
    """Seconds for `count` jobs and `count` plain services, from the first request until all have ended."""
    setting = Setting("swarm", (), image, docker_url)
    body = {**NO_OP, "command": list(_COMMAND)}
    with (
        server(*setting.flags(), variables=setting.variables()) as served,
        docker_network(docker_url, _NETWORK) as network,
    ):

        def floor(services: int, attached: str | None) -> float:
            time.sleep(_BETWEEN_S)  # wait for the cleanup of the previous run
            progress(f"{services} plain services{' on a network' if attached else ''}")
            return services_through(docker_url, image, _COMMAND, services, attached)

        floor(1, network)
        progress("one job, to warm up")
        asyncio.run(through(served, [body], 1))
        bare = floor(count, None)
        before = floor(count, network)
        time.sleep(_BETWEEN_S)
        progress(f"{count} jobs")
        _, ours = asyncio.run(through(served, [body] * count, _CLIENTS))
        after = floor(count, network)
    how = "first request until all have ended; baseline: plain services on an overlay network, mean of two runs"
    return [
        Figure(f"{count} no-op jobs", ours, "s", how, (before + after) / 2),
        Figure(f"{count} plain services without any network", bare, "s", "the same"),
    ]
