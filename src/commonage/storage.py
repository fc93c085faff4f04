"""Measures homes and folders of volumes by `du`, which counts blocks as the file system does.

Its process has the lowest priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from commonage.domain.errors import Unavailable
from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.ports.homes import FolderSize

_COMMAND = ("nice", "-n", "19", "du", "--one-file-system", "--summarize", "--block-size=1K", "-0", "--files0-from=-")
_PATIENCE_S = 3600.0


_OWNERS = {"{tenant}", "{user}"}


class HomeFolders:
    """The folders below `root`, and those of volumes with a tenant or user in their path. Users may write to them."""

    def __init__(self, root: SafePath, volumes: Sequence[Volume] = ()) -> None:
        self._root = root
        self._volumes = [one for one in volumes if one.writable and _OWNERS & set(one.source.split("/"))]

    async def measure(self) -> Mapping[str, int]:
        """MiB of each, rounded up. Folders that cannot be read, or vanish, are left out. Raises Unavailable."""
        try:
            # Opened without following links, and measured from there, because the folder's name may be replaced
            # meanwhile.
            with ExitStack() as closing:
                descriptor = await asyncio.to_thread(closing.enter_context, self._root.folder())
                folders = await asyncio.to_thread(_folders, descriptor)
                found = await _measured(folders, f"/proc/self/fd/{descriptor}") if folders else {}
                return {os.path.basename(path): mib for path, mib in found.items()}
        except OSError as error:
            raise Unavailable(f"Cannot measure the homes in {self._root}: {error.strerror or error}.") from error
        except TimeoutError:
            raise Unavailable(f"Measuring the homes in {self._root} took more than an hour.") from None

    async def measure_volumes(self) -> Sequence[FolderSize]:
        """Links are not followed. Folders that are missing here are left out. Raises Unavailable."""
        try:
            owners = {
                path: (volume.name, tenant, user)
                for volume in self._volumes
                for path, tenant, user in await asyncio.to_thread(_owned, volume.source)
            }
            found = await _measured([os.fsencode(path) for path in owners], "/") if owners else {}
        except OSError as error:
            raise Unavailable(f"Cannot measure the volumes: {error.strerror or error}.") from error
        except TimeoutError:
            raise Unavailable("Measuring the volumes took more than an hour.") from None
        return [FolderSize(*owners[path], mib) for path, mib in sorted(found.items())]


async def _measured(folders: list[bytes], at: str) -> Mapping[str, int]:
    """MiB of each folder, rounded up, by path. `at`: the working directory."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=at,
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
            found[os.fsdecode(path)] = -(-int(kib) // 1024)
    return found


def _folders(root: int) -> list[bytes]:
    with os.scandir(root) as entries:
        return [os.fsencode(f"./{one.name}") for one in entries if one.is_dir(follow_symlinks=False)]


def _owned(source: str) -> list[tuple[str, str | None, str | None]]:
    """(path, tenant's folder name, user's folder name) of each folder that matches the source of a volume."""
    found: list[tuple[str, str | None, str | None]] = [("/", None, None)]
    for part in (part for part in source.split("/") if part):
        deeper: list[tuple[str, str | None, str | None]] = []
        for path, tenant, user in found:
            for name in _subfolders(path) if part in _OWNERS else [part]:
                below = os.path.join(path, name)
                if part == "{tenant}":
                    deeper.append((below, name, user))
                elif part == "{user}":
                    deeper.append((below, tenant, name))
                elif os.path.isdir(below):
                    deeper.append((below, tenant, user))
        found = deeper
    return found


def _subfolders(path: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:  # removed meanwhile, or not readable here
        return [one.name for one in entries if one.is_dir(follow_symlinks=False)]
    return []
