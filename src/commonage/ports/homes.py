"""Disk usage of users' homes. Implemented in `commonage.storage`, used by `control.usage.homes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Homes(Protocol):
    """All homes, each a folder named by `domain.volumes.folder_name`."""

    async def measure(self) -> Mapping[str, int]:
        """Disk usage in MiB of each home, by folder name. May take minutes. Raises Unavailable."""
