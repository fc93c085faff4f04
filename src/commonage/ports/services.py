"""The proxy's routes to services, and requests to them, as seen from the control plane's machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commonage.domain.services import ServiceRoute


class ServiceAccess(Protocol):
    async def publish(self, routes: Sequence[ServiceRoute]) -> None:
        """Serve exactly these services. Raises Unavailable if the routes cannot be written."""

    async def failure(self, url: str, path: str) -> str | None:
        """Request `path` of the service at `url`; None if it answers, otherwise why that does not count.

        Returns within seconds, whatever the service sends. An empty path stands for the front page, of which any
        answer counts; of another one, a status below 400.
        """


class NoServiceAccess:
    """For an installation without a proxy."""

    async def publish(self, routes: Sequence[ServiceRoute]) -> None:
        return

    async def failure(self, url: str, path: str) -> str | None:
        return "this installation has no proxy"
