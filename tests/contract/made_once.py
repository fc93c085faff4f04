"""What takes minutes to make and is the same each time is kept in /tmp, under a name that says what is in it."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.contract.leftovers import unmount_below


def made_once(name: str, make: Callable[[Path, IO[bytes]], None]) -> Path:
    """The folder with what `make` puts there, made when it is not there; what it says goes to a log beside it."""
    place = Path(f"/tmp/cmng-{name}")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            fresh = place.with_name(f"{place.name}.new")
            unmount_below(fresh)  # one that was killed
            subprocess.run(["rm", "-rf", "--one-file-system", fresh], check=True)
            fresh.mkdir()
            with open(f"{fresh}.log", "wb") as log:
                make(fresh, log)
            fresh.rename(place)
    return place
