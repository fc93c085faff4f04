"""One attempt in the fake engine's world: its state follows from its start time and the present time.

Called by `fakes.engine` only. Pure: it has no clock, and nothing waits here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import StoppedBeforeStart
from commonage.domain.statuses import LogLine, Measurement, Phase, StartRequest, Status
from commonage.testing.behaviour import KILLED, TERMINATED, Behaviour


@dataclass(slots=True)
class FakeRun:
    """An attempt that was started at `began_at`.

    `cut_at` and `cut_code`: time and exit code of an end from outside.
    """

    request: StartRequest
    behaviour: Behaviour
    began_at: float
    url: str | None = None
    cut_at: float | None = None
    cut_code: int | None = None
    cut_reason: Reason | None = None
    forgotten: bool = False
    gone: bool = False

    @property
    def runs_at(self) -> float:
        return self.began_at + self.behaviour.start_delay_s

    @property
    def ends_at(self) -> float | None:
        """The time at which it ends, as far as is known now; None: not by itself."""
        own = None if self.behaviour.lasts_s is None else self.runs_at + self.behaviour.lasts_s
        if self.cut_at is None:
            return own
        return self.cut_at if own is None else min(own, self.cut_at)

    def stop(self, now: float, grace_s: float) -> None:
        """SIGTERM at `now`, SIGKILL after the grace period; an earlier end stays."""
        if now < self.runs_at:
            self.cut(now, TERMINATED, StoppedBeforeStart())
        elif self.behaviour.ignores_term:
            self.cut(now + grace_s, KILLED, None)
        else:
            own = self.behaviour.on_term_exit
            self.cut(now, TERMINATED if own is None else own, None)

    def cut(self, at: float, code: int | None, reason: Reason | None) -> None:
        """End the run at `at` with `code`, unless it ends earlier."""
        if self.ends_at is None or at < self.ends_at:
            self.cut_at, self.cut_code, self.cut_reason = at, code, reason

    def phase(self, now: float) -> Phase:
        """The visible phase."""
        if self.ends_at is not None and self.ends_at <= now:
            return Phase.ENDED
        return Phase.RUNNING if self.runs_at <= now else Phase.STARTING

    def is_gone(self, now: float) -> bool:
        """True when it is no longer reported."""
        after = self.behaviour.vanishes_after_s
        return self.forgotten or self.gone or (after is not None and self.runs_at + after <= now)

    def changes_at(self, now: float) -> float | None:
        """The next instant after `now` at which its status changes; None if unknown."""
        instants = [at for at in (self.runs_at, self.ends_at) if at is not None and at > now]
        return min(instants, default=None)

    def status(self, now: float) -> Status:
        """Its status at `now`."""
        seen, node, behaviour = self.phase(now), self.request.allocation.node, self.behaviour
        if seen is Phase.STARTING:
            return Status(self.request.attempt_id, seen, self.began_at, node, behaviour.start_reason)
        ended_at = self.ends_at
        if seen is Phase.RUNNING or ended_at is None:
            return Status(self.request.attempt_id, seen, self.runs_at, node, url=self.url, started_at=self.runs_at)
        was_cut = self.cut_at is not None and self.cut_at == ended_at
        started_at = self.runs_at if self.runs_at <= ended_at else None
        return Status(
            self.request.attempt_id,
            seen,
            ended_at,
            node,
            reason=self.cut_reason if was_cut else None,
            exit_code=self.cut_code if was_cut else behaviour.exit_code,
            oom=behaviour.oom and not was_cut,
            started_at=started_at,
        )

    def measurement(self, now: float) -> Measurement:
        """One core all the time, and the memory of its behaviour."""
        cpu_s = max(0.0, now - self.runs_at)
        return Measurement(self.request.attempt_id, cpu_s, self.behaviour.holds_mib, (self.pid,))

    @property
    def port(self) -> str:
        """The port in its address; empty if it has none."""
        return "" if self.url is None else self.url.rpartition(":")[2]

    @property
    def pid(self) -> int:
        """The id of its first process."""
        return 1_000_000 + sum(map(ord, self.request.attempt_id))


def given_to(request: StartRequest, port: str) -> dict[str, str]:
    given = {name: value.replace("{port}", port) for name, value in (*request.variables, *request.secrets)}
    given |= {"COMMONAGE_ATTEMPT_ID": request.attempt_id, "COMMONAGE_WORKLOAD_ID": request.workload_id}
    return given | {"COMMONAGE_USER": request.owner}


@dataclass(slots=True)
class FakeLog:
    """The output of an attempt: bytes, like a file."""

    content: bytes = b""
    ends: list[int] = field(default_factory=list)

    def write(self, text: str) -> None:
        """Append one line."""
        self.content += text.encode() + b"\n"
        self.ends.append(len(self.content))

    def lines(self, offset: int) -> list[LogLine]:
        """The lines that end after byte `offset`; the first is cut if `offset` lies inside it."""
        found, start = [], offset
        for end in self.ends:
            if end > offset:
                found.append(LogLine(self.content[start : end - 1].decode(), end))
                start = end
        return found

    def tail_offset(self, count: int) -> int:
        """The byte at which the last `count` lines begin."""
        if count <= 0:
            return len(self.content)
        return self.ends[-count - 1] if count < len(self.ends) else 0
