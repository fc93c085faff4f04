"""Iterations of a control loop. `/health` uses them to tell a stuck loop from a working or idle one.

Each loop owns one `Iterations` and reports when it is idle. Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

USUAL_ITERATION_S = 60.0  # an iteration that takes longer than this is stuck, unless its loop allows more


class Iterations:
    """`name` is shown in `/health`, metrics and logs. `now` gives unix seconds. An iteration may take `within_s`."""

    def __init__(self, name: str, now: Callable[[], float], within_s: float = USUAL_ITERATION_S) -> None:
        self.name = name
        self._now, self._within_s = now, within_s
        self._ended_at: float | None = None
        self._began_at: float | None = None
        self._breaks = 0

    def begin(self) -> None:
        self._began_at = self._now()

    def end(self) -> None:
        self._ended_at, self._began_at = self._now(), None

    def note_break(self) -> None:
        self._breaks += 1
        self.end()

    @contextmanager
    def rest(self) -> Iterator[None]:
        """The loop waits, for any time: the previous iteration has ended, and the next begins afterwards."""
        self.end()
        yield
        self.begin()

    def health(self) -> LoopHealth:
        now = self._now()
        busy_s = 0.0 if self._began_at is None else now - self._began_at
        return LoopHealth(
            name=self.name,
            age_s=None if self._ended_at is None else max(0.0, now - self._ended_at),
            stuck=busy_s > self._within_s,
            breaks=self._breaks,
        )


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """`age_s`: seconds since the end of the last iteration, None before the first. `stuck`: the current one takes too
    long. `breaks`: the number of unexpected errors that ended an iteration and restarted the loop.
    """

    name: str
    age_s: float | None
    stuck: bool
    breaks: int


class Loop(Protocol):
    """Runs until it is cancelled, and reports the begin and end of its iterations."""

    @property
    def iterations(self) -> Iterations: ...

    def run(self) -> Coroutine[Any, Any, None]:
        """Run forever. An error that it raises ends the server."""
        ...
