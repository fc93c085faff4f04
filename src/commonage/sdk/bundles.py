"""Packs files to upload. The same files always give the same bytes, hence the same digest."""

from __future__ import annotations

import asyncio
import gzip
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TypeAlias, cast

Files: TypeAlias = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]

HEADERS = {"Content-Type": "application/gzip"}
# Not uploaded with a folder.
LEFT_OUT = frozenset(
    {".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".ipynb_checkpoints", ".mypy_cache"}
)

_IN_MEMORY = 8 * 1024 * 1024


async def async_content(files: Files) -> bytes:
    return await asyncio.to_thread(content, files)


def content(files: Files) -> bytes:
    with pack(files) as archive:
        return archive.read()


def pack(files: Files) -> IO[bytes]:
    """Pack a folder's content, one file, or files by their names in the archive into a tar.gz, opened at its start.

    Of a folder, names in LEFT_OUT, links that lead out of it, sockets and devices are left out. Raises OSError for
    a file that cannot be read.
    """
    archive = cast(IO[bytes], SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 (the caller closes it)
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=archive, mtime=0, compresslevel=6) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, path in sorted(_listed(files)):
                _add(tar, name, path)
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return archive


def _listed(files: Files) -> Iterator[tuple[str, Path]]:
    if isinstance(files, Mapping):
        yield from ((name, Path(path)) for name, path in files.items())
        return
    root = Path(files)
    if not root.is_dir():
        yield root.name, root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in names:
            path = Path(folder, name)
            if _belongs(path, root):
                yield path.relative_to(root).as_posix(), path


def _belongs(path: Path, root: Path) -> bool:
    if path.is_symlink():
        return path.resolve().is_relative_to(root.resolve()) and path.is_file()
    return path.is_file()


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    """Add one file with only its name, content and executable bit."""
    with path.open("rb") as content:
        entry = tarfile.TarInfo(name)
        status = os.fstat(content.fileno())
        entry.size = status.st_size
        entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
        tar.addfile(entry, content)
