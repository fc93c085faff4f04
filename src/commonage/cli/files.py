"""The files that go along with a workload: which of a folder, and that they are not too many. For run and submit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from commonage.cli.failures import MISUSED, Failure
from commonage.cli.show import memory

LIMIT_MIB = 64
MOST_FILES = 20_000
_NAMED = 5
# In the data folder of a server, which holds secrets and other people's work.
_OF_A_SERVER = "commonage.lock"
# Nothing that anybody means to send along: what tools keep for themselves.
LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".ipynb_checkpoints", ".cache",
        ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".hypothesis", ".commonage",
    }
)  # fmt: skip


def files_along(folder: Path, only: Sequence[str] = ()) -> Mapping[str, Path]:
    """The files of `folder` by their names in it: all, or those that `only` names (files and folders within it).

    In a git work tree what git ignores stays behind; elsewhere what is in LEFT_OUT does. So does a server's data
    folder, wherever it is. Raises Failure when there are too many, or too much of them.
    """
    folder = folder.resolve()
    names = list(_chosen(folder, only)) if only else list(_listed(folder))
    found = {name: folder / name for name in names if _is_inside(folder, folder / name)}
    _check_size(found)
    return found


def _chosen(folder: Path, only: Sequence[str]) -> Iterator[str]:
    for one in only:
        path = (folder / one).resolve()
        if not path.exists():
            raise Failure(f"there is no file or folder {one!r} in {folder}", MISUSED)
        if not path.is_relative_to(folder):
            raise Failure(f"{one!r} is outside of {folder}; only what is in it can go along", MISUSED)
        if path.is_dir():
            yield from ((path / name).relative_to(folder).as_posix() for name in _walked(path))
        else:
            yield path.relative_to(folder).as_posix()


def _listed(folder: Path) -> Iterator[str]:
    """What git would take, where the folder is in a work tree; else everything but what tools keep for themselves."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=folder, capture_output=True, check=True, timeout=60,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return _walked(folder)
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    servers = tuple(name.removesuffix(_OF_A_SERVER) for name in names if name.endswith(f"/{_OF_A_SERVER}"))
    return (name for name in names if not LEFT_OUT.intersection(name.split("/")) and not name.startswith(servers))


def _walked(folder: Path) -> Iterator[str]:
    for number, (path, folders, names) in enumerate(os.walk(folder)):
        there = sorted(set(folders) - LEFT_OUT)
        folders[:] = [name for name in there if not Path(path, name, _OF_A_SERVER).exists()]
        if number > MOST_FILES:
            raise Failure(_too_many(folder), MISUSED)
        yield from (Path(path, name).relative_to(folder).as_posix() for name in sorted(names))


def _is_inside(folder: Path, path: Path) -> bool:
    """A plain file, also behind a link, if the link leads to something in the folder."""
    return path.is_file() and (not path.is_symlink() or path.resolve().is_relative_to(folder))


def _check_size(found: Mapping[str, Path]) -> None:
    if len(found) > MOST_FILES:
        raise Failure(_too_many(Path.cwd()), MISUSED)
    sizes = {name: path.stat().st_size for name, path in found.items()}
    total_mib = sum(sizes.values()) / 1024**2
    if total_mib <= LIMIT_MIB:
        return
    largest = sorted(sizes.items(), key=lambda item: item[1], reverse=True)[:_NAMED]
    listed = "".join(f"\n  {memory(size / 1024**2):>9}  {name}" for name, size in largest)
    raise Failure(
        f"the {len(found)} files of this folder are {memory(total_mib)}, and at most {LIMIT_MIB} MiB go along with a "
        f"job. The largest:{listed}\nName what is needed with --files PATH, let .gitignore leave things out, "
        "or send nothing with --no-files.",
        MISUSED,
    )


def _too_many(folder: Path) -> str:
    return (
        f"there are more than {MOST_FILES} files in {folder}; name what is needed with --files PATH, "
        "or send nothing with --no-files"
    )
