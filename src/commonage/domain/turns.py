"""The turns of a loop, by which `/health` tells one that works or rests from one that is stuck.

Each loop owns one `Turns` and says when it rests. Pure: the clock comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

USUAL_TURN_S = 60.0
"""A turn that takes longer than this is stuck, unless its loop is known to take its time."""


class Turns:
    """`name` is the loop's in `/health`, metrics and logs. `now` gives unix seconds. A turn may take `within_s`."""

    def __init__(self, name: str, now: Callable[[], float], within_s: float = USUAL_TURN_S) -> None:
        self.name = name
        self._now, self._within_s = now, within_s
        self._ended_at: float | None = None
        self._began_at: float | None = None
        self._breaks = 0

    def begin(self) -> None:
        """A turn begins."""
        self._began_at = self._now()

    def end(self) -> None:
        """A turn has ended: the loop waits for the next."""
        self._ended_at, self._began_at = self._now(), None

    def note_break(self) -> None:
        """The loop broke in its turn, and starts again."""
        self._breaks += 1
        self.end()

    @contextmanager
    def rest(self) -> Iterator[None]:
        """The loop waits, however long that takes: the turn before has ended, and the next begins afterwards."""
        self.end()
        yield
        self.begin()

    def health(self) -> LoopHealth:
        """As it is now."""
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
    """`age_s`: since the end of the last turn, None before the first. `stuck`: the present turn takes too long.

    `breaks`: how often an unexpected error ended a turn, and the loop started again.
    """

    name: str
    age_s: float | None
    stuck: bool
    breaks: int


class Loop(Protocol):
    """Runs until it is cancelled, and says when its turns begin and end."""

    @property
    def turns(self) -> Turns:
        """Its own."""
        ...

    def run(self) -> Coroutine[Any, Any, None]:
        """Turn after turn. What it raises ends the server."""
        ...
