"""The join service and its listener, with the join config from the settings. Made by the bootstrap.

Main opens it after the agents' listener, and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.join.client import NAME
from commonage.join.listener import JoinListener
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.agent_connections import AgentConnections
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.clock import Clock
from commonage.ports.registry import RegistryAccount
from commonage.server.processes.listen import PortError
from commonage.server.settings.settings import Settings
from commonage.wire.hub import PORTAL_PATH

# Services cannot request no-new-privileges, so the daemon sets it for all containers. Swarm mode refuses live-restore.
_DAEMON: Mapping[str, Any] = {"no-new-privileges": True, "live-restore": False}


@dataclass(frozen=True, slots=True)
class JoiningPlan:
    """The listener's address and the join config. `address` is this machine's for the joining nodes, without port.

    `agents_port` is where their agents connect; `shared_dir` the folder that all nodes share; `agent` the site's
    values for the agents' settings.
    """

    name: str
    address: str
    bind: str
    port: int
    agents_port: int
    script_url: str
    docker_url: str
    shared_dir: Path
    account: RegistryAccount | None = None
    images: Sequence[str] = ()
    agent: Mapping[str, Any] = field(default_factory=dict)


def joining_plan(
    settings: Settings, shared_dir: Path, agents_port: int, account: RegistryAccount | None = None
) -> JoiningPlan | None:
    """The plan of the settings; None if nodes cannot join."""
    address = settings.site_address
    if address is None:
        return None
    here = settings.public_url or f"http://{_in_url(address)}:{settings.port}"
    return JoiningPlan(
        name=settings.name,
        address=address,
        bind=settings.joining_bind,
        port=settings.joining_port,
        agents_port=agents_port,
        script_url=f"{here.rstrip('/')}{PORTAL_PATH}join",
        docker_url=settings.docker_url,
        shared_dir=shared_dir.absolute(),
        account=account,
        images=_images(settings),
        agent=_agent(settings),
    )


def _images(settings: Settings) -> Sequence[str]:
    """The images that most workloads use."""
    named = [settings.docker_image, *(entry.image for entry in settings.environments)]
    return list(dict.fromkeys(image for image in named if image))


def _agent(settings: Settings) -> Mapping[str, Any]:
    """The settings that differ from an agent's defaults."""
    values = {"isolation": settings.gpu_isolation, "slots": settings.gpu_slots, "cpu_hold": settings.cpu_hold}
    return {name: value for name, value in values.items() if value}


class Joining:
    """The join service behind its listener. `join_service` is the port for the API."""

    def __init__(self, plan: JoiningPlan, authority: CertificateAuthority, folder: Path, clock: Clock) -> None:
        self._plan, self._authority = plan, authority
        account = plan.account
        site = Site(
            name=plan.name,
            script_url=plan.script_url,
            listeners=(f"{_in_url(plan.address)}:{plan.port}",),
            agents=(f"{_in_url(plan.address)}:{plan.agents_port}",),
            shared_dir=plan.shared_dir,
            registry=account.address if account else "",
            images=tuple(plan.images),
            daemon=_DAEMON,
            agent=plan.agent,
        )
        tokens = Tokens(folder / "secret", authority.fingerprint)
        self.join_service = JoinService(site, authority, tokens, SwarmManager(plan.docker_url), clock)
        self._join_listener = JoinListener(self.join_service)

    async def open(self, agents: AgentConnections | None) -> None:
        """Start to accept nodes. Raises PortError, BundleError."""
        bundle = await asyncio.to_thread(make_bundle)
        await asyncio.to_thread(self.join_service.open, bundle, agents)
        pair = await asyncio.to_thread(self._authority.serve, [NAME, self._plan.address])
        try:
            await self._join_listener.start(self._plan.bind, self._plan.port, pair.cert_pem, pair.key_pem)
        except OSError as error:
            raise PortError(
                f"Cannot listen for joining machines at {self._plan.bind}, port {self._plan.port}: "
                f"{error.strerror or error}. Set joining_port or joining_bind."
            ) from error

    async def close(self) -> None:
        """Stop accepting nodes."""
        await self._join_listener.stop()


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
