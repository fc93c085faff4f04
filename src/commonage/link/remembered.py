"""What agents said last, kept in a file over restarts of the control plane: a card is not gone because we were.

Used by `agents`. Samples are not kept: they are old by then. The functions block: call them in threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from commonage.domain.fleet import NodeReport
from commonage.link.codec import Unreadable, from_json, to_json
from commonage.ports.agents import Heard

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of one machine. `connected`: its link stood when this was written."""

    node: str
    report: NodeReport
    at: float
    connected: bool
    engine_fault: str = ""
    fenced: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    bounds_volumes: bool = False

    def heard(self, now: float) -> Heard:
        """As it is told after a restart: its link does not stand. It may have been in contact until now."""
        return Heard(
            self.node,
            self.report,
            now,
            monotonic(),
            connected=False,
            engine_fault=self.engine_fault,
            fenced=self.fenced,
            witnesses=self.witnesses,
            notices=self.notices,
            bounds_volumes=self.bounds_volumes,
        )


@dataclass(frozen=True, slots=True)
class _All:
    each: tuple[Remembered, ...]


def read(path: Path) -> tuple[Remembered, ...]:
    """All of them; none where the file is not there or cannot be read: they are told anew soon."""
    try:
        return from_json(_All, json.loads(path.read_text(encoding="utf-8"))).each
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, Unreadable) as error:
        _log.warning("what agents said before cannot be read from %s: %s", path, error)
        return ()


def write(path: Path, heard: Iterable[Heard]) -> None:
    """Whole or not at all. Raises OSError."""
    kept = [
        Remembered(
            one.node,
            one.report,
            one.at,
            one.connected,
            one.engine_fault,
            one.fenced,
            one.witnesses,
            one.notices,
            one.bounds_volumes,
        )
        for one in heard
    ]
    new = path.with_suffix(".new")
    new.write_text(json.dumps(to_json(_All(tuple(kept)))), encoding="utf-8")
    new.replace(path)
