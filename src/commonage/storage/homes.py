"""Homes measured by `du`, which counts blocks as the file system does, in a process of the least priority."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from commonage.domain.errors import Unavailable

_COMMAND = ("nice", "-n", "19", "du", "--one-file-system", "--summarize", "--block-size=1K", "-0", "--files0-from=-")
_PATIENCE_S = 3600.0


class HomeFolders:
    """The folders below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def measure(self) -> Mapping[str, int]:
        """MiB that each takes, rounded up. What cannot be read, or goes meanwhile, is left out. Raises Unavailable."""
        try:
            folders = await asyncio.to_thread(self._folders)
            return await self._measured(folders) if folders else {}
        except OSError as error:
            raise Unavailable(f"the homes in {self._root} cannot be measured: {error.strerror or error}") from error
        except TimeoutError:
            raise Unavailable(f"the homes in {self._root} take more than an hour to measure") from None

    def _folders(self) -> list[bytes]:
        with os.scandir(os.fsencode(self._root)) as entries:
            return [one.path for one in entries if one.is_dir(follow_symlinks=False)]

    async def _measured(self, folders: list[bytes]) -> Mapping[str, int]:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                said, _ = await process.communicate(b"\0".join(folders) + b"\0")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        found = {}
        for line in said.split(b"\0"):
            kib, tab, path = line.partition(b"\t")
            if tab:
                found[os.fsdecode(os.path.basename(path))] = -(-int(kib) // 1024)
        return found
