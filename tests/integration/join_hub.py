"""A control plane for machines that join, on a machine of the tests' Swarm: `python -m tests.integration.join_hub`.

The API, the door for machines and the agents' listener are real, the authority and the Swarm's manager too; what would
run workloads is the fake engine of the API's tests. Ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvicorn
from tests.integration.api_world import SPAWNER, FakeIdentity, WallClock, make_control

from commonage.api.app import create_app, end_streams
from commonage.api.auth import Auth
from commonage.engines.containers.membership import SwarmManager
from commonage.joining.door import MachinesDoor
from commonage.joining.fetch import NAME
from commonage.joining.office import Office, Site
from commonage.joining.tokens import Tokens
from commonage.link.agents import LinkedAgents
from commonage.link.bundle import make_bundle
from commonage.link.ca import Authority

API_PORT, DOOR_PORT, AGENTS_PORT = 8000, 8445, 8444


async def serve(folder: Path, shared: Path, docker_url: str, address: str) -> None:
    """Until stdin ends."""
    authority = Authority.open(folder / "ca")
    agents = LinkedAgents(authority)
    await agents.open(address, AGENTS_PORT)
    site = Site(
        name="Test site",
        script_url=f"http://{address}:{API_PORT}/services/commonage/join",
        doors=(f"{address}:{DOOR_PORT}",),
        agents=(f"{address}:{AGENTS_PORT}",),
        shared_dir=shared,
        # Nothing is fetched from it here: it must be reached, and its trust and login be put down.
        registry=f"{address}:{DOOR_PORT}",
        daemon={"no-new-privileges": True, "live-restore": False},
    )
    tokens = Tokens(folder / "joining" / "secret", authority.fingerprint)
    office = Office(site, authority, tokens, SwarmManager(docker_url), WallClock())
    office.open(make_bundle(), agents)
    door = MachinesDoor(office)
    pair = authority.serve([NAME])
    await door.start(address, DOOR_PORT, pair.cert_pem, pair.key_pem)
    identity = FakeIdentity()
    control, _ = make_control(folder, identity=identity)
    await control.store.open()
    await control.open()
    loops = asyncio.create_task(control.run())
    app = create_app(control, Auth(identity, SPAWNER), machines=office)
    server = uvicorn.Server(uvicorn.Config(app, host=address, port=API_PORT, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (there is nothing to wait for but time)
        await asyncio.sleep(0.05)
    print(json.dumps({"url": f"http://{address}:{API_PORT}"}), flush=True)
    await answer_questions(agents)
    end_streams(app)
    server.should_exit = True
    await serving
    loops.cancel()
    await asyncio.wait([loops])
    await door.stop()
    await agents.close()


async def answer_questions(agents: LinkedAgents) -> None:
    """Say, for each line of stdin, what the agents said last."""
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps([_said(one) for one in agents.heard()]), flush=True)


def _said(heard: Any) -> dict[str, Any]:
    report = heard.report
    return {
        "node": heard.node,
        "connected": heard.connected,
        "cpus_milli": report.cpus_milli,
        "devices": len(report.devices),
        "labels": dict(report.labels),
    }


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5]))
