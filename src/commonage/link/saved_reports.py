"""Keeps the agents' last reports in a file, so that GPUs stay known over a restart of the control plane.

Used by `agent_connections`. Samples are not kept, because they would be old. The functions block: call them in threads.
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
class _SavedReports:
    reports: tuple[AgentReport, ...]


def read(path: Path) -> tuple[AgentReport, ...]:
    """All reports as they were written; none if the file does not exist or cannot be read: agents soon send new ones.

    `AgentReport.monotonic_at` is monotonic, so a value of an earlier process has no meaning.
    """
    try:
        return from_json(_SavedReports, json.loads(path.read_text(encoding="utf-8"))).reports
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, Unreadable) as error:
        _log.warning("the saved reports of agents cannot be read from %s: %s", path, error)
        return ()


def write(path: Path, reports: Iterable[AgentReport]) -> None:
    """Write the file atomically. Raises OSError."""
    saved = tuple(replace(one, paused=(), samples=(), owners=()) for one in reports)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(to_json(_SavedReports(saved))), encoding="utf-8")
    new.replace(path)
