"""Decides when a lost Docker daemon makes this node fence its containers. No I/O; `agent` feeds it with pings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DaemonNotAnswering, DaemonNotRunning

SILENT_FAULT_AFTER_S = 10.0


class Ping(Enum):
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

    def note(self, answer: Ping, began: float) -> None:
        match answer:
            case Ping.ANSWERS:
                self.gone_since = self.silent_since = None
                self.fenced = False
            case Ping.GONE:
                self.gone_since = began if self.gone_since is None else self.gone_since
            case Ping.SILENT:
                self.gone_since = None
                self.silent_since = began if self.silent_since is None else self.silent_since

    def note_fenced(self, *, done: bool) -> None:
        """The containers were ended; `done`: all of them, so that fencing is not due again."""
        self.fenced = done

    def fault(self, now: float) -> Reason | None:
        """Why this node should get no work; None if it may get some."""
        if self.gone_since is not None:
            return DaemonNotRunning(silent_s=round(now - self.gone_since))
        if self.silent_since is not None and now - self.silent_since >= SILENT_FAULT_AFTER_S:
            return DaemonNotAnswering(silent_s=round(now - self.silent_since))
        return None

    def must_fence(self, now: float) -> bool:
        """True when its containers must be ended, until `note_fenced` reports that it is done."""
        gone = self.gone_since is not None and now - self.gone_since >= self.fence_after_s
        silent = self.silent_since is not None and now - self.silent_since >= self.silent_after_s
        return (gone or silent) and not self.fenced
