"""Swarm manager API of this engine: services, tasks, nodes, configs, secrets and networks.

Failures are EngineFailures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.connection import (
    CONFLICT,
    GONE,
    Connection,
    DaemonRefused,
    Json,
    unless_refused,
)


class Client(Connection):
    """The daemon at `url`, which is a manager."""

    async def membership(self) -> Json:
        """Its data as a member of the Swarm. Raises EngineFailure unless it is a manager."""
        found = (await self.info()).get("Swarm") or {}
        if not found.get("ControlAvailable"):
            state = found.get("LocalNodeState") or "unknown"
            raise EngineFailure(
                f"the Docker daemon at {self.url} is no manager of a Swarm (its state there: {state}); make it one "
                "with `docker swarm init --advertise-addr ADDRESS --dispatcher-heartbeat 2s`, or let the control plane "
                "run on a manager"
            )
        return dict(found)

    async def heartbeat_s(self) -> float:
        """Heartbeat interval of a node; after three missing heartbeats it is down."""
        spec = (await self.ask("GET", "swarm"))["Spec"]
        return float(spec["Dispatcher"]["HeartbeatPeriod"]) / 1e9

    async def nodes(self) -> Sequence[Json]:
        return list(await self.ask("GET", "nodes") or ())

    async def tasks(self, label: str) -> Sequence[Json]:
        return list(await self.ask("GET", "tasks", label=[label]) or ())

    async def services(self, *labels: str) -> Sequence[Json]:
        return list(await self.ask("GET", "services", label=labels) or ())

    async def create_service(self, spec: Json) -> str | None:
        """Return its id; None if the name is taken."""
        with unless_refused(CONFLICT):
            return str((await self.ask("POST", "services/create", spec))["ID"])
        return None

    async def has_service(self, service: str) -> bool:
        with unless_refused(GONE):
            await self.ask("GET", f"services/{service}")
            return True
        return False

    async def remove_service(self, service: str) -> None:
        """Remove it with its tasks; their containers continue briefly. A missing one is no error."""
        with unless_refused(GONE):
            await self.ask("DELETE", f"services/{service}")

    async def create_delivery(self, kind: str, body: Json) -> str | None:
        """Create one of the `configs` or `secrets`; return its id, or None if the name is taken."""
        with unless_refused(CONFLICT):
            return str((await self.ask("POST", f"{kind}/create", body))["ID"])
        return None

    async def deliveries(self, kind: str, *labels: str) -> Sequence[Json]:
        """The `configs` or `secrets` with all these labels. The contents of secrets are not returned."""
        return list(await self.ask("GET", kind, label=labels) or ())

    async def remove_delivery(self, kind: str, delivery: str) -> bool:
        """False if a service uses it. A missing one is no error."""
        try:
            with unless_refused(GONE):
                await self.ask("DELETE", f"{kind}/{delivery}")
        except DaemonRefused as error:
            if "in use" in str(error):
                return False
            raise
        return True

    async def overlays(self) -> Sequence[Json]:
        """All networks that span several nodes, including those of others."""
        found = await asyncio.gather(
            self.ask("GET", "networks", driver=["overlay"]), self.ask("GET", "networks", scope=["swarm"])
        )
        return [one for part in found for one in part or ()]
