"""Homes and folders of volumes: measures them by `du`, limits them where the file system has project quotas, and
moves, archives or deletes those of one user or tenant.

`du` counts blocks as the file system does, also those that left their project; its process has the lowest priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.volumes import OWNERS, Volume, folder_name
from commonage.files.safe_path import SafePath, absolute
from commonage.ports.homes import Enforcement, FolderSize, OwnedFolder
from commonage.storage.limits import existing_part, gap_at, limit
from commonage.storage.project_quotas import put_in_project_of

_COMMAND = ("nice", "-n", "19", "du", "--one-file-system", "--summarize", "--block-size=1K", "-0", "--files0-from=-")
_PATIENCE_S = 3600.0


class HomeFolders:
    """The folders below `root`, and those of volumes with a tenant or user in their path. Users may write to them."""

    def __init__(self, root: SafePath, archives: Path) -> None:
        self._root, self._archives = root, archives

    async def claims_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[str]:
        return ()

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
        limit(limited)
        gaps = {volume.name: gap_at(existing_part(volume.source)) for volume in volumes}
        return Enforcement(gap_at(self._root), {name: gap for name, gap in gaps.items() if gap is not None})

    async def folders_of(
        self, volumes: Sequence[Volume], *, user: str | None = None, tenant: str | None = None
    ) -> Sequence[OwnedFolder]:
        part, name = ("{user}", folder_name(user or "")) if tenant is None else ("{tenant}", folder_name(tenant))
        home = self._root / name
        found = [OwnedFolder("", str(home))] if tenant is None and await asyncio.to_thread(home.is_folder) else []
        try:
            for volume in volumes:
                source = _until(volume.source, part)
                if volume.writable and source is not None:
                    owned = await asyncio.to_thread(_owned, source)
                    found += (OwnedFolder(volume.name, path) for path, *_ in owned if os.path.basename(path) == name)
        except OSError as error:
            raise Unavailable(f"Cannot look for the folders of volumes: {error.strerror or error}.") from error
        return found

    def place(self, folder: OwnedFolder, name: str, within: str | None = None) -> str:
        parent = os.path.dirname(folder.path)
        if within is None:
            return os.path.join(parent, folder_name(name))
        return os.path.join(parent, folder_name(within), f"from-{folder_name(name)}")

    async def is_free(self, path: str) -> bool:
        return not await asyncio.to_thread(os.path.lexists, path)

    async def move(self, folder: OwnedFolder, to: str) -> None:
        await self._change(folder, lambda source: _move(source, _below(source, to)))

    @property
    def archives(self) -> str:
        return str(self._archives)

    async def archive(self, folder: OwnedFolder, name: str) -> None:
        target = self._archives / f"{name}.tar"

        def pack(source: SafePath) -> None:
            if not target.exists():
                _pack(source, target)
            source.remove()

        await self._change(folder, pack)

    async def delete(self, folder: OwnedFolder) -> None:
        await self._change(folder, SafePath.remove)

    async def _change(self, folder: OwnedFolder, change: Callable[[SafePath], None]) -> None:
        """Run the change on the folder, in a thread. A missing folder is no error."""
        root = self._root if not folder.volume else SafePath(Path(folder.path).parent)
        source = root / os.path.basename(folder.path)
        try:
            if await asyncio.to_thread(source.exists):
                await asyncio.to_thread(change, source)
        except FileExistsError as error:
            raise Conflict(f"There is something at {error.filename} already. Move it away.") from error
        except (OSError, tarfile.TarError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise Unavailable(f"Cannot change the folder {folder.path}: {why}.") from error


def _until(source: str, part: str) -> str | None:
    """The source of a volume up to this part; None without it."""
    parts = source.split("/")
    return "/".join(parts[: parts.index(part) + 1]) if part in parts else None


def _below(source: SafePath, to: str) -> SafePath:
    """The path `to`, which is below the parent folder of `source`."""
    names = Path(to).relative_to(source.parent.path).parts
    return SafePath(source.root, (*source.parent.names, *names))


def _move(source: SafePath, target: SafePath) -> None:
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if len(target.names) > len(source.names):
        target.parent.make_folder()
        put_in_project_of(target.parent, source)
    source.move(target)


def _pack(source: SafePath, target: Path) -> None:
    """Write an archive of the folder; it appears under its name only when it is complete and on the disk."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    partial = target.with_suffix(".part")
    with source.folder() as descriptor, partial.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(f"/proc/self/fd/{descriptor}/.", arcname=source.name)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
