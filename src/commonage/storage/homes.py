"""Measures homes and folders of volumes by `du`, and has the file system limit them where it has project quotas.

`du` counts blocks as the file system does, also those that left their project. Its process has the lowest priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import Unavailable
from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import OWNERS, Volume
from commonage.files.safe_path import SafePath, absolute
from commonage.ports.homes import Enforcement, FolderSize
from commonage.storage.project_quotas import OURS, gap_of, limit_of, project_of, put_in_project, set_limit

_log = logging.getLogger(__name__)
_COMMAND = ("nice", "-n", "19", "du", "--one-file-system", "--summarize", "--block-size=1K", "-0", "--files0-from=-")
_PATIENCE_S = 3600.0


class HomeFolders:
    """The folders below `root`, and those of volumes with a tenant or user in their path. Users may write to them."""

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
                found = await _measured(folders, f"/proc/self/fd/{descriptor}") if folders else {}
                return {os.path.basename(path): mib for path, mib in found.items()}
        except OSError as error:
            raise Unavailable(f"Cannot measure the homes in {self._root}: {error.strerror or error}.") from error
        except TimeoutError:
            raise Unavailable(f"Measuring the homes in {self._root} took more than an hour.") from None

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        """Links are not followed. Folders that are missing here are left out. Raises Unavailable."""
        owned = [one for one in volumes if one.is_measured]
        try:
            owners = {
                path: (volume.name, tenant, user)
                for volume in owned
                for path, tenant, user in await asyncio.to_thread(_owned, volume.source)
            }
            found = await _measured([os.fsencode(path) for path in owners], "/") if owners else {}
        except OSError as error:
            raise Unavailable(f"Cannot measure the volumes: {error.strerror or error}.") from error
        except TimeoutError:
            raise Unavailable("Measuring the volumes took more than an hour.") from None
        return [FolderSize(*owners[path], mib, path) for path, mib in sorted(found.items())]

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement:
        """See the port. A folder that vanished, or that an admin put in a project, is left out."""
        limits = [(self._root / name, mib) for name, mib in homes.items()]
        limits += [(absolute(Path(one.path)), mib) for one, mib in folders]
        return await asyncio.to_thread(self._enforce, limits, [one for one in volumes if one.is_measured])

    def _enforce(self, limits: Sequence[tuple[SafePath, int | None]], volumes: Sequence[Volume]) -> Enforcement:
        limited = {folder: mib for folder, mib in limits if gap_at(folder) is None}
        _limit(limited)
        gaps = {volume.name: gap_at(_existing_part(volume.source)) for volume in volumes}
        return Enforcement(gap_at(self._root), {name: gap for name, gap in gaps.items() if gap is not None})


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
            for name in _subfolders(path) if part in OWNERS else [part]:
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


def gap_at(folder: SafePath) -> StorageGap | None:
    """Why the file system of a folder enforces no limits of ours; None if it does. Blocks briefly."""
    try:
        with folder.open_path() as descriptor:
            return gap_of(descriptor)
    except OSError:  # it is not on this machine, or vanished
        return StorageGap.NO_PROJECT_QUOTAS


def _existing_part(source: str) -> SafePath:
    """The folder above the first part of a source that differs by tenant or user."""
    parts = [part for part in source.split("/") if part]
    first = next((index for index, part in enumerate(parts) if part in OWNERS), len(parts))
    return SafePath(Path("/"), tuple(parts[:first]))


@dataclass(slots=True)
class _Limited:
    """A folder with its limit in KiB, 0 for none, and its project, 0 for none yet."""

    folder: SafePath
    limit_kib: int
    project: int


def _limit(folders: Mapping[SafePath, int | None]) -> None:
    """Set these limits, in MiB; None: no limit. Raises nothing: what fails is tried again at the next turn."""
    known: list[_Limited] = []
    taken: set[int] = set()
    for folder, mib in folders.items():
        with contextlib.suppress(OSError), folder.folder() as descriptor:
            project = project_of(descriptor)
            if project and project not in OURS:
                continue  # an admin's
            if project in taken:
                project = 0  # a copy of another folder
            taken.add(project)
            if project or mib is not None:
                known.append(_Limited(folder, 0 if mib is None else max(1, 1024 * mib), project))
    for one in known:
        try:
            _limit_one(one, taken)
        except OSError as error:
            _log.warning("no limit on %s: %s", one.folder, error.strerror)


def _limit_one(one: _Limited, taken: set[int]) -> None:
    with one.folder.folder() as descriptor:
        project = one.project or _free_project(one.folder, descriptor, taken)
        taken.add(project)
        before, _ = limit_of(descriptor, project)
        if before == one.limit_kib:
            return
        if not before:  # so it is done again if the server ends meanwhile
            put_in_project(one.folder, project)
        set_limit(descriptor, project, one.limit_kib)


def _free_project(folder: SafePath, descriptor: int, taken: set[int]) -> int:
    """A project without files and limit; another installation may use the same file system."""
    start = zlib.crc32(os.fsencode(folder.path))
    for offset in range(len(OURS)):
        project = OURS[(start + offset) % len(OURS)]
        if project not in taken and limit_of(descriptor, project) == (0, 0):
            return project
    raise OSError(errno.EUSERS, "all projects are taken")
