"""When the catalogue last needed each image in the registry: recorded by each collection, in a file next to its
storage.

So a replaced or removed image stays for as long as a new one: attempts that began to start in it still pull it, and
its digest may be registered again. Blocks: for threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

log = logging.getLogger(__name__)


def last_needed(file: Path) -> dict[str, float]:
    """The last recorded time (unix seconds) at which each image (`REPOSITORY@sha256:…`) was needed."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): float(at) for name, at in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("which images were needed when cannot be read, so only pushes count: %s", error)
        return {}


def note_needed(file: Path, before: Mapping[str, float], now: Mapping[str, float], there: Collection[str]) -> None:
    """Store the times of `before` and `now` for the images that are still `there`, atomically.

    A write error is only logged: on a full disk images must be deleted all the same.
    """
    kept = {name: at for name, at in {**before, **now}.items() if name in there}
    new = file.with_suffix(".new")
    try:
        with new.open("w", encoding="utf-8") as opened:
            json.dump(kept, opened, indent=0, sort_keys=True)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
    except OSError as error:
        log.warning("which images are needed now cannot be noted: %s", error)
        new.unlink(missing_ok=True)
