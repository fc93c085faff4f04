"""`commonage bench swarm`: no-op jobs through us on a Docker Swarm, beside plain services that do the same.

Plain services are the floor: what the Swarm itself takes. Each of ours is on its tenant's network, so they are on one,
too. Both run on the same workers, in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from commonage.cli.bench.control import NO_OP, through
from commonage.cli.bench.docker_api import overlay, services_through
from commonage.cli.bench.report import Figure
from commonage.cli.bench.server import server
from commonage.cli.bench.sessions import Setting

Say = Callable[[str], None]
_COMMAND = ("/bin/sh", "-c", "true")
_CLIENTS = 10
_BETWEEN_S = 5.0
_NETWORK = "commonage-bench-floor"


def run(count: int, image: str, docker_url: str, say: Say) -> list[Figure]:
    """Seconds for `count` jobs and for as many plain services, both from the first request until all have ended."""
    setting = Setting("swarm", None, image, docker_url)
    body = {**NO_OP, "command": list(_COMMAND)}
    with server(*setting.flags(), variables=setting.variables()) as served, overlay(docker_url, _NETWORK) as network:

        def floor(services: int, attached: str | None) -> float:
            time.sleep(_BETWEEN_S)  # what came before is cleared away
            say(f"{services} plain services{' on a network' if attached else ''}")
            return services_through(docker_url, image, _COMMAND, services, attached)

        floor(1, network)
        say("one job, to warm up")
        asyncio.run(through(served, [body], 1))
        bare = floor(count, None)
        before = floor(count, network)
        time.sleep(_BETWEEN_S)
        say(f"{count} jobs")
        _, ours = asyncio.run(through(served, [body] * count, _CLIENTS))
        after = floor(count, network)
    how = "first request until all have ended; the peer are plain services on an overlay network, mean of two runs"
    return [
        Figure(f"{count} no-op jobs", ours, "s", how, (before + after) / 2),
        Figure(f"{count} plain services without any network", bare, "s", "the same"),
    ]
