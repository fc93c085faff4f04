"""Keeps the agents' last reports in a file, so that GPUs stay known over a restart of the control plane.

Used by `agents`. Samples are not kept, because they would be old. The functions block: call them in threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.ports.agents import AgentReport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _All:
    each: tuple[AgentReport, ...]


def read(path: Path) -> tuple[AgentReport, ...]:
    """All reports as they were written; none if the file does not exist or cannot be read: agents soon send new ones.

    `AgentReport.monotonic_at` is monotonic, so a value of an earlier process has no meaning.
    """
    try:
        return from_json(_All, json.loads(path.read_text(encoding="utf-8"))).each
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, Unreadable) as error:
        _log.warning("what agents said before cannot be read from %s: %s", path, error)
        return ()


def write(path: Path, heard: Iterable[AgentReport]) -> None:
    """Write the file atomically. Raises OSError."""
    kept = tuple(replace(one, paused=(), samples=(), owners=()) for one in heard)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(to_json(_All(kept))), encoding="utf-8")
    new.replace(path)
