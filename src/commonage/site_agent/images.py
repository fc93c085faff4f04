"""Access to the control plane's image registry: one token for each image that a workload here needs."""

from __future__ import annotations

from collections.abc import Callable

from commonage.domain.errors import EngineFailure
from commonage.link.sites.messages.engine import PULL_TOKEN, WantedImage
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.registry import PullToken


class PullTokens:
    """Gets tokens over the link; they are kept nowhere. `connection` returns the current one, None without one."""

    def __init__(self, connection: Callable[[], SiteConnection | None]) -> None:
        self._connection = connection

    async def get(self, image: str) -> PullToken | None:
        """None if the image is in another registry. Raises EngineFailure, also without a link."""
        connection = self._connection()
        if connection is None:
            raise EngineFailure("this site is not connected to it", retryable=True)
        return (await connection.request(PULL_TOKEN, WantedImage(image))).token
