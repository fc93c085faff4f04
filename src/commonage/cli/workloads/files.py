"""Selects the files of a folder that are sent with a workload, checks their size, and sends them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commonage.cli.errors import MISUSED, Failure
from commonage.cli.output import memory

if TYPE_CHECKING:
    from commonage.sdk import Client

MAX_MIB = 64
MAX_FILES = 20_000
# Marks the data folder of a server, which has secrets and files of other users.
_SERVER_MARKER = "commonage.lock"
# Folders of tools, which are never sent.
EXCLUDED = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".ipynb_checkpoints", ".cache",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".hypothesis", ".commonage",
    }
)  # fmt: skip


def send_files(client: Client, folder: Path, only: Sequence[str]) -> str | None:
    """Upload the files. Returns the digest to submit with; None without files. Raises Failure."""
    files = files_to_send(folder, only)
    if not files:
        return None
    try:
        return client.bundle(files).digest
    except OSError as error:
        raise Failure(f"{error.filename or folder} cannot be sent: {error.strerror or error}", MISUSED) from error


def files_to_send(folder: Path, only: Sequence[str] = ()) -> Mapping[str, Path]:
    """The files of `folder` by relative path: all, or the files and folders in `only`.

    Leaves out what git ignores, folders in EXCLUDED, and data folders of servers. Raises Failure if the files are too
    many or too large.
    """
    folder = folder.resolve()
    names = _selected(folder, only) if only else _listed(folder)
    files = {name: folder / name for name in names if _is_inside(folder, folder / name)}
    _check_size(files)
    return files


def _selected(folder: Path, only: Sequence[str]) -> Iterator[str]:
    for name in only:
        path = (folder / name).resolve()
        if not path.exists():
            raise Failure(f"no file or folder {name!r} in {folder}", MISUSED)
        if not path.is_relative_to(folder):
            raise Failure(f"{name!r} is outside of {folder}. Only files in this folder can be sent.", MISUSED)
        if path.is_dir():
            yield from ((path / below).relative_to(folder).as_posix() for below in _walk(path))
        else:
            yield path.relative_to(folder).as_posix()


def _listed(folder: Path) -> Iterator[str]:
    """The files that git does not ignore in a work tree; elsewhere all files except EXCLUDED."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=folder, capture_output=True, check=True, timeout=60,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return _walk(folder)
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    servers = tuple(name.removesuffix(_SERVER_MARKER) for name in names if name.endswith(f"/{_SERVER_MARKER}"))
    return (name for name in names if not EXCLUDED.intersection(name.split("/")) and not name.startswith(servers))


def _walk(folder: Path) -> Iterator[str]:
    for number, (path, folders, names) in enumerate(os.walk(folder)):
        kept = sorted(set(folders) - EXCLUDED)
        folders[:] = [name for name in kept if not Path(path, name, _SERVER_MARKER).exists()]
        if number > MAX_FILES:
            raise Failure(_too_many(folder), MISUSED)
        yield from (Path(path, name).relative_to(folder).as_posix() for name in sorted(names))


def _is_inside(folder: Path, path: Path) -> bool:
    """Whether this is a file. A link must lead to a file in the folder."""
    return path.is_file() and (not path.is_symlink() or path.resolve().is_relative_to(folder))


def _check_size(files: Mapping[str, Path]) -> None:
    if len(files) > MAX_FILES:
        raise Failure(_too_many(Path.cwd()), MISUSED)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total_mib = sum(sizes.values()) / 1024**2
    if total_mib <= MAX_MIB:
        return
    largest = sorted(sizes.items(), key=lambda item: item[1], reverse=True)[:5]
    listed = "".join(f"\n  {memory(size / 1024**2):>9}  {name}" for name, size in largest)
    raise Failure(
        f"the {len(files)} files of this folder have {memory(total_mib)}; at most {MAX_MIB} MiB can be sent. "
        f"The largest:{listed}\nSelect files with --files PATH, list others in .gitignore, "
        "or send none with --no-files.",
        MISUSED,
    )


def _too_many(folder: Path) -> str:
    return f"{folder} has more than {MAX_FILES} files. Select files with --files PATH, or send none with --no-files."
