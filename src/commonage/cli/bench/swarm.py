"""`commonage bench swarm`: no-op jobs through us on a Docker Swarm, beside plain services that do the same.

Plain services are the floor: what the Swarm itself takes. Both run on the same workers, in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from commonage.cli.bench.control import NO_OP, through
from commonage.cli.bench.docker_api import services_through
from commonage.cli.bench.report import Figure
from commonage.cli.bench.server import server
from commonage.cli.bench.sessions import Setting

Say = Callable[[str], None]
_COMMAND = ("/bin/sh", "-c", "true")
_CLIENTS = 10
_BETWEEN_S = 3.0


def run(count: int, image: str, docker_url: str, say: Say) -> list[Figure]:
    """Seconds for `count` jobs and for as many plain services, both from the first request until all have ended."""
    setting = Setting("swarm", None, image, docker_url)
    with server(*setting.flags(), variables=setting.variables()) as served:
        body = {**NO_OP, "command": list(_COMMAND)}
        say("one of each, to warm up")
        asyncio.run(through(served, [body], 1))
        services_through(docker_url, image, _COMMAND, 1)
        say(f"{count} plain services")
        before = services_through(docker_url, image, _COMMAND, count)
        asyncio.run(asyncio.sleep(_BETWEEN_S))
        say(f"{count} jobs")
        _, ours = asyncio.run(through(served, [body] * count, _CLIENTS))
        asyncio.run(asyncio.sleep(_BETWEEN_S))
        say(f"{count} plain services again")
        after = services_through(docker_url, image, _COMMAND, count)
    floor = (before + after) / 2
    how = "from the first request until all have ended; the peer are plain services, mean of a run before and one after"
    return [Figure(f"{count} no-op jobs", ours, "s", how, floor)]
