"""Membership of a Swarm at its manager: admitting and removing nodes.

Used where nodes join; workloads are not its subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.swarm_nodes import swarm_nodes_of
from commonage.ports.joining import Admission, SwarmMember, SwarmTrust

_WITHIN_S = 20.0


class SwarmManager:
    """The daemon at `url`, which must be a manager of the Swarm."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def admission(self) -> Admission:
        """The Swarm's own token for workers, and its managers (HOST:PORT). Raises EngineFailure."""
        async with self._client() as client:
            mine = await client.membership()
            token = (await client.ask("GET", "swarm"))["JoinTokens"]["Worker"]
        managers = tuple(one["Addr"] for one in mine.get("RemoteManagers") or () if one.get("Addr"))
        return Admission(token, managers or (f"{mine['NodeAddr']}:2377",))

    async def trust(self) -> SwarmTrust:
        """Its id and its root certificates. Raises EngineFailure."""
        async with self._client() as client:
            swarm = await client.ask("GET", "swarm")
        return SwarmTrust(str(swarm["ID"]), str(swarm["TLSInfo"]["TrustRoot"]))

    async def members(self, bound: Mapping[str, str]) -> Mapping[str, SwarmMember]:
        """All nodes by id. `bound` are the names that certificates bind to ids. Raises EngineFailure."""
        async with self._client() as client:
            found = await client.nodes()
        listed = {one.id: name for name, one in swarm_nodes_of(found, bound).items()}
        return {
            str(one["ID"]): SwarmMember(listed.get(str(one["ID"]), _host_name(one)), _host_name(one), _state(one))
            for one in found
        }

    async def remove(self, node_ids: Collection[str]) -> int:
        """Remove the nodes with these ids, whatever they do; return their number.

        A manager is not removed: the Swarm may be lost with it. Raises EngineFailure.
        """
        async with self._client() as client:
            found = [one for one in await client.nodes() if one["ID"] in node_ids]
            for one in found:
                if one.get("Spec", {}).get("Role") == "manager":
                    raise EngineFailure(
                        f"{_host_name(one)} is a manager of the Swarm; `docker node demote {one['ID']}` first"
                    )
            for one in found:
                await client.ask("DELETE", f"nodes/{one['ID']}?force=true")
        return len(found)

    async def renew_token(self) -> None:
        """Replace the token that admits workers; the old one becomes invalid. Raises EngineFailure."""
        async with self._client() as client:
            swarm = await client.ask("GET", "swarm")
            # The Swarm's settings must be sent again, or they are lost.
            path = f"swarm/update?version={swarm['Version']['Index']}&rotateWorkerToken=true"
            await client.ask("POST", path, swarm["Spec"])

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Such calls are rare, and a kept connection would have to be closed."""
        client = Client(self._url)
        try:
            async with asyncio.timeout(_WITHIN_S):
                yield client
        except TimeoutError as error:
            why = f"the Docker daemon at {self._url} does not answer within {_WITHIN_S:.0f} s"
            raise EngineFailure(why, retryable=True) from error
        finally:
            await client.close()


def _state(node: Json) -> str:
    return str(node.get("Status", {}).get("State", "unknown"))


def _host_name(node: Json) -> str:
    return str((node.get("Description") or {}).get("Hostname", ""))
