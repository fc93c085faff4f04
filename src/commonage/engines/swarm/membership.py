"""A Swarm's manager, as far as letting machines in and putting them out goes; what runs there is others' work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from commonage.domain.errors import EngineFailure
from commonage.engines.dockerd.connection import Json
from commonage.engines.swarm.client import Client
from commonage.ports.joining import Admission

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

    async def members(self, node: str) -> Mapping[str, str]:
        """The machines of this name, by id: `ready`, `down`, …. Raises EngineFailure."""
        async with self._client() as client:
            return {str(one["ID"]): _state(one) for one in await _named(client, node)}

    async def remove(self, node: str, *, down_only: bool = False) -> int:
        """Put out those of this name, whatever they do (or those alone that are down); says how many.

        A manager is not put out: the Swarm may be lost with it. Raises EngineFailure.
        """
        async with self._client() as client:
            found = [one for one in await _named(client, node) if not down_only or _state(one) == "down"]
            if any(one.get("Spec", {}).get("Role") == "manager" for one in found):
                raise EngineFailure(f"{node} is a manager of the Swarm; `docker node demote {node}` first")
            for one in found:
                await client.ask("DELETE", f"nodes/{one['ID']}?force=true")
        return len(found)

    async def renew_token(self) -> None:
        """Have another token let workers in; the one until now does not any more. Raises EngineFailure."""
        async with self._client() as client:
            swarm = await client.ask("GET", "swarm")
            # What the Swarm is set to must be said again, or it is lost.
            path = f"swarm/update?version={swarm['Version']['Index']}&rotateWorkerToken=true"
            await client.ask("POST", path, swarm["Spec"])

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Such calls are rare, and a connection that is kept would have to be closed."""
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


async def _named(client: Client, node: str) -> Sequence[Json]:
    return [one for one in await client.nodes() if one.get("Description", {}).get("Hostname") == node]
