"""Measures homes by `du`, which counts blocks as the file system does, in a process of the lowest priority."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack

from commonage.domain.errors import Unavailable
from commonage.files.safe_path import SafePath

_COMMAND = ("nice", "-n", "19", "du", "--one-file-system", "--summarize", "--block-size=1K", "-0", "--files0-from=-")
_PATIENCE_S = 3600.0


class HomeFolders:
    """The folders below `root`. Users may write to them."""

    def __init__(self, root: SafePath) -> None:
        self._root = root

    async def measure(self) -> Mapping[str, int]:
        """MiB of each, rounded up. Folders that cannot be read, or vanish, are left out. Raises Unavailable."""
        try:
            # Opened without following links, and measured from there, because the folder's name may be replaced
            # meanwhile.
            with ExitStack() as closing:
                descriptor = await asyncio.to_thread(closing.enter_context, self._root.folder())
                folders = await asyncio.to_thread(_folders, descriptor)
                return await self._measured(folders, descriptor) if folders else {}
        except OSError as error:
            raise Unavailable(f"Cannot measure the homes in {self._root}: {error.strerror or error}.") from error
        except TimeoutError:
            raise Unavailable(f"Measuring the homes in {self._root} took more than an hour.") from None

    async def _measured(self, folders: list[bytes], root: int) -> Mapping[str, int]:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=f"/proc/self/fd/{root}",
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                output, _ = await process.communicate(b"\0".join(folders) + b"\0")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        found = {}
        for line in output.split(b"\0"):
            kib, tab, path = line.partition(b"\t")
            if tab:
                found[os.fsdecode(os.path.basename(path))] = -(-int(kib) // 1024)
        return found


def _folders(root: int) -> list[bytes]:
    with os.scandir(root) as entries:
        return [os.fsencode(f"./{one.name}") for one in entries if one.is_dir(follow_symlinks=False)]
