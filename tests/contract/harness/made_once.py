"""Keeps files in /tmp that take minutes to make, under names that are derived from their content."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.contract.harness.leftovers import unmount_below

_in_use: list[IO[str]] = []


def made_once(name: str, make: Callable[[Path, IO[bytes]], None]) -> Path:
    """The folder that `make` fills, created if it is missing. Its output goes to a log in the same parent folder.

    While this process lives `forget_others` of another run does not remove it.
    """
    place = Path(f"/tmp/cmng-{name}")
    lock = open(f"{place}.lock", "w")  # noqa: SIM115  # open as long as this process lives
    _in_use.append(lock)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if not place.exists():
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _make(place, make)
        fcntl.flock(lock, fcntl.LOCK_SH)
    return place


def share_environments(data: Path) -> None:
    """Let what has this data folder, and no environments yet, use those of all that are under test: saves minutes.

    They have names and locks that let any number of processes use and make them.
    """
    place = Path(f"/tmp/cmng-environments-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    assert place.stat().st_uid == os.getuid(), f"{place} belongs to another user"
    data.mkdir(mode=0o700)
    (data / "environments").symlink_to(place)


def _make(place: Path, make: Callable[[Path, IO[bytes]], None]) -> None:
    fresh = place.with_name(f"{place.name}.new")
    _remove(fresh)  # one that was killed
    fresh.mkdir()
    with open(f"{fresh}.log", "wb") as log:
        make(fresh, log)
    fresh.rename(place)


def forget_others(prefix: str, kept: Path) -> None:
    """Remove what was made under names with this prefix, but for what is `kept` and what another run uses."""
    for file in Path("/tmp").glob(f"cmng-{prefix}*.lock"):
        place = file.with_suffix("")
        if place == kept:
            continue
        with file.open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in (place, place.with_name(f"{place.name}.new")):
                _remove(folder)


def _remove(folder: Path) -> None:
    unmount_below(folder)
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)
