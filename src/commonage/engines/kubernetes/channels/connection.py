"""WebSocket connections to a cluster's API server, with the addresses and credentials that lightkube reads.

Kubernetes multiplexes the streams of one command or port over such a connection: the first byte of each message is
its channel.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx2 as httpx

from commonage.domain.errors import EngineFailure

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

_log = logging.getLogger(__name__)
_ANSWERS_WITHIN_S = 30.0
_ENDS_WITHIN_S = 5.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A lost API server is noticed after a minute. WebSocket pings would mistake a reader that pauses for a lost server."""

Socket = aiohttp.ClientWebSocketResponse


class ChannelRefused(EngineFailure):
    """The API server refused a stream, with an HTTP status."""

    def __init__(self, status: int, what: str, text: str) -> None:
        super().__init__(f"the cluster refused {what}", retryable=status >= 500, native=f"HTTP {status}: {text[:300]}")
        self.http_status = status


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a Pod."""

    namespace: str
    pod: str
    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}"


class Connections:
    """Connections to one API server. Nothing is sent before the first use; `close` ends all."""

    def __init__(self, config: SingleConfig) -> None:
        """Read certificates and keys. Blocks briefly; raises EngineFailure."""
        from lightkube.config.client_adapter import user_auth, verify_cluster  # noqa: PLC0415 - Kubernetes sites only
        from lightkube.config.models import User  # noqa: PLC0415 - Kubernetes sites only
        from lightkube.core.exceptions import ConfigError  # noqa: PLC0415 - Kubernetes sites only

        user = config.user or User()
        try:
            self._tls = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
            self._auth = user_auth(user)
        except (ConfigError, OSError, ValueError) as error:
            raise EngineFailure(f"the kubeconfig's credentials cannot be used: {error}; correct them") from error
        self._config_error = ConfigError
        self._server = config.cluster.server.rstrip("/")
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def connect(self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str], what: str) -> Socket:
        """Open a stream; `what` is its name in errors. Credentials that the server refuses are read again, once."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                try:
                    opened = await self._connect(path, query, protocols, is_refused=False)
                except aiohttp.WSServerHandshakeError as error:
                    if error.status != httpx.codes.UNAUTHORIZED:
                        raise
                    opened = await self._connect(path, query, protocols, is_refused=True)
        except aiohttp.WSServerHandshakeError as error:
            raise ChannelRefused(error.status, what, error.message) from error
        except (aiohttp.ClientError, OSError) as error:  # includes TimeoutError
            raise _silent(what, error) from error
        if opened.protocol not in protocols:
            await opened.close()
            raise EngineFailure(f"the cluster has none of the protocols for {what}: {', '.join(protocols)}")
        return opened

    async def runs(self, container: Container) -> bool:
        """Whether this container runs, and its Pod is not about to end. Raises EngineFailure."""
        what = "a look at a Pod"
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                code, found = await self._get(container.path, is_refused=False)
                if code == httpx.codes.UNAUTHORIZED:
                    code, found = await self._get(container.path, is_refused=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _silent(what, error) from error
        if code == httpx.codes.NOT_FOUND:
            return False
        if code != httpx.codes.OK:
            raise ChannelRefused(code, what, str(found.get("message", "")))
        if "deletionTimestamp" in found["metadata"]:
            return False
        status = found.get("status", {})
        known = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return any(one["name"] == container.name and "running" in one.get("state", {}) for one in known)

    async def _get(self, path: str, *, is_refused: bool) -> tuple[int, dict[str, Any]]:
        headers = await self._headers(is_refused=is_refused)
        async with self._session().get(self._server + path, headers=headers, ssl=self._tls) as answer:
            return answer.status, await answer.json(content_type=None)

    async def _connect(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str], *, is_refused: bool
    ) -> Socket:
        opened = await self._session().ws_connect(
            self._server + path,
            params=list(query),
            headers=await self._headers(is_refused=is_refused),
            protocols=protocols,
            ssl=self._tls,
            timeout=aiohttp.ClientWSTimeout(ws_close=_ENDS_WITHIN_S),
            max_msg_size=0,
        )
        if (raw := opened.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return opened

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._http

    async def _headers(self, *, is_refused: bool) -> dict[str, str]:
        """The credentials that lightkube sends for this user: at first, or after its credentials were refused."""
        if self._auth is None:
            return {}
        request = httpx.Request("GET", self._server)
        try:
            async with aclosing(self._auth.async_auth_flow(request)) as flow:
                signed = await anext(flow)
                if is_refused:
                    with suppress(StopAsyncIteration):
                        signed = await flow.asend(httpx.Response(httpx.codes.UNAUTHORIZED, request=request))
        except (self._config_error, OSError, ValueError, KeyError) as error:
            raise EngineFailure(f"the cluster's credentials cannot be read: {error}; renew them") from error
        return {"Authorization": signed.headers["Authorization"]} if "Authorization" in signed.headers else {}


def _silent(what: str, error: Exception) -> EngineFailure:
    native = str(error) or type(error).__name__
    return EngineFailure(f"the cluster's API does not answer for {what}; try again", retryable=True, native=native)
