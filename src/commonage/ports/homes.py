"""How much room people's homes take. Implemented in `commonage.storage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Homes(Protocol):
    """All homes, each a folder named by `domain.folders.folder_name`."""

    async def measure(self) -> Mapping[str, int]:
        """MiB of disk that each takes, by folder name. May take minutes. Raises Unavailable."""
        ...
