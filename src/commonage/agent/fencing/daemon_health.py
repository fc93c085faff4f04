"""Decides when the Docker daemon counts as gone, and for how long. No I/O; `run` feeds it with pings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SILENT_FOR_A_FAULT_S = 10.0


class Answer(Enum):
    """The result of a ping."""

    ANSWERS = "answers"
    GONE = "gone"
    SILENT = "silent"


@dataclass(slots=True)
class DaemonHealth:
    """The state of the daemon. Times are monotonic.

    `fence_after_s`: time the daemon may be gone before its containers are ended without it. A daemon that listens and
    does not answer, as can happen under load, has `silent_after_s`.
    """

    fence_after_s: float
    silent_after_s: float
    gone_since: float | None = None
    silent_since: float | None = None
    fenced: bool = False

    def note(self, answer: Answer, began: float) -> None:
        """Record the result of a ping that began at `began`."""
        match answer:
            case Answer.ANSWERS:
                self.gone_since = self.silent_since = None
                self.fenced = False
            case Answer.GONE:
                self.gone_since = began if self.gone_since is None else self.gone_since
            case Answer.SILENT:
                self.gone_since = None
                self.silent_since = began if self.silent_since is None else self.silent_since

    def note_fenced(self, *, done: bool) -> None:
        """The containers were ended; `done`: all of them, so that fencing is not due again."""
        self.fenced = done

    def fault(self, now: float) -> str:
        """Why this node should get no work; empty if it may."""
        if self.gone_since is not None:
            return f"its Docker daemon is not there, for {now - self.gone_since:.0f} s now"
        if self.silent_since is not None and now - self.silent_since >= SILENT_FOR_A_FAULT_S:
            return f"its Docker daemon does not answer, for {now - self.silent_since:.0f} s now"
        return ""

    def is_due(self, now: float) -> bool:
        """True when its containers must be ended, until `note_fenced` reports that it is done."""
        gone = self.gone_since is not None and now - self.gone_since >= self.fence_after_s
        silent = self.silent_since is not None and now - self.silent_since >= self.silent_after_s
        return (gone or silent) and not self.fenced
