"""Answers Caddy whether a name below the wildcard of sessions belongs to a user or a service, before it requests a
certificate.

Without this check, any client could make Caddy request certificates for names that they invent. The route is on the
control plane's loopback port only; the proxy does not lead to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.domain.errors import Unavailable
from commonage.wire.origins import SERVICE_LABEL, label_of, session_domain

ASK_PATH = "/session-name"
_FRESH_S = 1.0  # a flood of invented names costs the hub one request in this time


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class SessionNames:
    """`accounts` returns the users of the hub; `is_service` returns whether a live service has this id, from memory."""

    def __init__(
        self,
        accounts: Callable[[], Awaitable[Sequence[_Named]]],
        is_service: Callable[[str], bool],
        session_origin: str,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._accounts, self._is_service, self._monotonic, self._sleep = accounts, is_service, monotonic, sleep
        self._domain = session_domain(session_origin)
        self._labels: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def has(self, host: str) -> bool:
        """Whether `host` is the name of a user's sessions or of a live service.

        Raises Unavailable if the hub does not answer.
        """
        label, _, domain = host.lower().partition(".")
        if not self._domain or domain != self._domain:
            return False
        if label.startswith(SERVICE_LABEL):  # no user has such a label
            return self._is_service(label.removeprefix(SERVICE_LABEL))
        asked_at = self._monotonic()
        if label not in self._labels:
            await self._read_since(asked_at)
        return label in self._labels

    async def _read_since(self, asked_at: float) -> None:
        """Read the users, unless another request has read them after `asked_at`."""
        async with self._reading:
            if self._read_at > asked_at:
                return
            await self._sleep(max(0.0, self._read_at + _FRESH_S - self._monotonic()))
            began = self._monotonic()
            self._labels = frozenset(label_of(one.name) for one in await self._accounts())
            self._read_at = began

    def route(self) -> Route:
        return Route(ASK_PATH, self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        try:
            known = await self.has(request.query_params.get("domain", ""))
        except Unavailable:
            return Response(status_code=503)
        return Response(status_code=200 if known else 404)
