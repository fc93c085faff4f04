"""What agents said last, kept in a file over restarts of the control plane: a card is not gone because we were.

Used by `agents`. Samples are not kept: they are old by then. The functions block: call them in threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.ports.agents import Heard

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _All:
    each: tuple[Heard, ...]


def read(path: Path) -> tuple[Heard, ...]:
    """All of them, as they were written; none where the file is not there or cannot be read: they are told anew soon.

    Of the clock that only rises (`Heard.came`) nothing is to be learned from a former life's.
    """
    try:
        return from_json(_All, json.loads(path.read_text(encoding="utf-8"))).each
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, Unreadable) as error:
        _log.warning("what agents said before cannot be read from %s: %s", path, error)
        return ()


def write(path: Path, heard: Iterable[Heard]) -> None:
    """Whole or not at all. Raises OSError."""
    kept = tuple(replace(one, paused=(), samples=(), owners=()) for one in heard)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(to_json(_All(kept))), encoding="utf-8")
    new.replace(path)
