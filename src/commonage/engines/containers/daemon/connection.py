"""Connection to a Docker daemon for all our engines: its description, images and networks.

Descriptions go in and out as the daemon's own JSON. Every failure is an EngineFailure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
from aiodocker import Docker

from commonage.engines.containers.api_version import common_version
from commonage.engines.containers.daemon.errors import DaemonRefused, failure_of, translated
from commonage.ports.registry import RegistryAccount

Json = Mapping[str, Any]
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)


class Connection:
    """One daemon at `url` (unix:///…, or tcp://…)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._docker: Docker | None = None
        self._opening = asyncio.Lock()

    async def _daemon(self) -> Docker:
        async with self._opening:
            if self._docker is None:
                with translated(self.url):
                    version = await self._common_version()
                    self._docker = Docker(url=self.url, timeout=_TIMEOUT, api_version=version)
        return self._docker

    async def _common_version(self) -> str:
        async with Docker(url=self.url, timeout=_TIMEOUT) as docker:

            async def ask(path: str) -> tuple[int, str]:
                async with docker.session.get(f"{docker.docker_host}{path}") as answer:
                    return answer.status, await answer.text()

            return await common_version(ask, self.url)

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
            self._docker = None

    async def info(self) -> Json:
        """The daemon's description of itself. Raises DaemonUnreachable."""
        with translated(self.url):
            return await (await self._daemon()).system.info()

    async def ask(self, method: str, path: str, body: Json | None = None, **filters: Sequence[str]) -> Any:
        """Send one API request, JSON both ways, `filters` in its format; return None for an empty response.

        For calls that the client library lacks, or that do more there than needed. Raises EngineFailure.
        """
        daemon = await self._daemon()
        url = f"{daemon.docker_host}/{daemon.api_version}/{path}"
        params = {"filters": json.dumps(filters)} if filters else None
        with translated(self.url):
            async with daemon.session.request(method, url, json=body, params=params) as answer:
                text = await answer.read()
            said = json.loads(text) if text.strip().startswith((b"{", b"[")) else None
        if answer.status >= 400:
            raise failure_of(answer.status, str((said or {}).get("message", text)), self.url)
        return said

    # --- images and networks ------------------------------------------------------------------------------------

    async def image(self, name: str) -> Json | None:
        """Description of a local image; None if it is not here."""
        try:
            with translated(self.url):
                return await (await self._daemon()).images.inspect(name)
        except DaemonRefused as error:
            if error.http_status == 404:
                return None
            raise

    async def pull(self, name: str, account: RegistryAccount | None = None) -> AsyncIterator[Json]:
        """Pull an image, with the account if that applies; yield the daemon's progress messages.

        A refusal by its registry is no temporary error.
        """
        known = account is not None and account.is_for(name)
        auth = {"username": account.user, "password": account.password} if account is not None and known else None
        with translated(self.url, name):
            async for message in (await self._daemon()).images.pull(name, auth=auth, stream=True):
                yield message

    async def networks(self, label: str) -> Sequence[Json]:
        """Networks with this label, oldest first."""
        with translated(self.url):
            found = await (await self._daemon()).networks.list(filters={"label": [label]})
        return sorted(found, key=lambda one: str(one["Created"]))

    async def network(self, network: str) -> Json | None:
        """Full description, attached containers included; None if it does not exist."""
        try:
            with translated(self.url):
                found = await (await self._daemon()).networks.get(network)
                return await found.show()
        except DaemonRefused as error:
            if error.http_status == 404:
                return None
            raise

    async def create_network(self, config: Json) -> str:
        with translated(self.url):
            return str((await (await self._daemon()).networks.create(dict(config))).id)

    async def remove_network(self, network: str) -> bool:
        """False if a container is attached to it."""
        try:
            with translated(self.url):
                await (await (await self._daemon()).networks.get(network)).delete()
        except DaemonRefused as error:
            if error.http_status == 404:
                return True
            if error.http_status == 403 or "active endpoints" in str(error) or "is in use" in str(error):
                return False
            raise
        return True
