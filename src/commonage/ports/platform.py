"""Checks whether this server's engine and machine support declared resources. Implemented in `server.platform`."""

from __future__ import annotations

from typing import Protocol

from commonage.domain.images import Environment
from commonage.domain.resources import NodePool, Platform
from commonage.ports.clouds import Cloud


class PlatformSupport(Protocol):
    def offers(self, environment: Environment) -> bool:
        """False for an environment that no engine here can run: it is left out of the catalogue."""
        return True

    def check(self, platform: Platform) -> None:
        """Raises InvalidInput for a volume or node pool that cannot work here."""
        return

    def cloud(self, pool: NodePool) -> Cloud:
        """The cloud of a node pool. Raises InvalidInput for an unknown provider."""
