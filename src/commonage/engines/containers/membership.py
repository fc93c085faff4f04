"""A Swarm's manager, as far as letting machines in and putting them out goes; what runs there is others' work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiodocker import Docker
from aiodocker.exceptions import DockerError

from commonage.domain.errors import EngineFailure
from commonage.ports.joining import Admission

_TIMEOUT = aiohttp.ClientTimeout(total=20, sock_connect=5)
_REFUSES = 400


class SwarmManager:
    """The daemon at `url`, which must be a manager of the Swarm."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def admission(self) -> Admission:
        """The Swarm's own token for workers, and its managers (HOST:PORT). Raises EngineFailure."""
        async with self._daemon() as docker:
            info: Any = await docker.system.info()
            swarm = info.get("Swarm") or {}
            if not swarm.get("ControlAvailable"):
                raise EngineFailure(
                    f"the Docker daemon at {self._url} is no manager of a Swarm (its state there: "
                    f"{swarm.get('LocalNodeState') or 'unknown'}); make it one with "
                    "`docker swarm init --advertise-addr ADDRESS`"
                )
            token = (await docker.swarm.inspect())["JoinTokens"]["Worker"]
        managers = tuple(one["Addr"] for one in swarm.get("RemoteManagers") or () if one.get("Addr"))
        return Admission(token, managers or (f"{swarm['NodeAddr']}:2377",))

    async def members(self, node: str) -> Mapping[str, str]:
        """The machines of this name, by id: `ready`, `down`, …. Raises EngineFailure."""
        async with self._daemon() as docker:
            return {str(one["ID"]): _state(one) for one in await _named(docker, node)}

    async def remove(self, node: str, *, down_only: bool = False) -> int:
        """Put out those of this name, whatever they do (or those alone that are down); says how many.

        A manager is not put out: the Swarm may be lost with it. Raises EngineFailure.
        """
        async with self._daemon() as docker:
            found = [one for one in await _named(docker, node) if not down_only or _state(one) == "down"]
            if any(one.get("Spec", {}).get("Role") == "manager" for one in found):
                raise EngineFailure(f"{node} is a manager of the Swarm; `docker node demote {node}` first")
            for one in found:
                await docker.nodes.remove(node_id=one["ID"], force=True)
        return len(found)

    async def renew_token(self) -> None:
        """Have another token let workers in; the one until now does not any more. Raises EngineFailure."""
        async with self._daemon() as docker:
            swarm = await docker.swarm.inspect()
            # The client library has no word for it. What the Swarm is set to must be said again, or it is lost.
            answer = await docker.session.post(
                f"{docker.docker_host}/{docker.api_version}/swarm/update",
                params={"version": str(swarm["Version"]["Index"]), "rotateWorkerToken": "true"},
                json=swarm["Spec"],
            )
            async with answer:
                if answer.status >= _REFUSES:
                    raise EngineFailure(f"the Docker daemon refuses: {(await answer.text())[:300]}")

    @asynccontextmanager
    async def _daemon(self) -> AsyncIterator[Docker]:
        """Such calls are rare, and a connection that is kept would have to be closed."""
        try:
            async with Docker(url=self._url, timeout=_TIMEOUT) as docker:
                yield docker
        except DockerError as error:
            raise EngineFailure(f"the Docker daemon refuses: {error.message}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineFailure(f"the Docker daemon at {self._url} does not answer: {error}", retryable=True) from error


def _state(node: Any) -> str:
    return str(node.get("Status", {}).get("State", "unknown"))


async def _named(docker: Docker, node: str) -> list[Any]:
    found = await docker.nodes.list()
    return [one for one in found if one.get("Description", {}).get("Hostname") == node]
