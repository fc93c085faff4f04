"""The last reports of the reconcilers of git branches. Kept in memory: each reports again at its next interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.writer import Writer
from commonage.domain.errors import InvalidInput
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons.resources import GitCommitApplied, GitCommitRefused, GitUnreachable
from commonage.domain.resources import GitSource, GitState
from commonage.domain.workloads import Event, EventKind
from commonage.ports.clock import Clock

MAX = 100
_REASONS = {
    GitState.APPLIED: GitCommitApplied,
    GitState.REFUSED: GitCommitRefused,
    GitState.UNREACHABLE: GitUnreachable,
}


@dataclass(slots=True)
class GitSources:
    writer: Writer
    clock: Clock
    settings: ControlSettings
    _sources: dict[str, GitSource] = field(default_factory=dict)

    def all(self, principal: Principal) -> Sequence[GitSource]:
        """By name. For operators and admins."""
        access_of(principal, self.settings).need(Permission.SEE_PLATFORM)
        return [self._sources[name] for name in sorted(self._sources)]

    async def report(self, principal: Principal, name: str, state: GitState, *, commit: str, message: str) -> GitSource:
        """Note the state of a source; a new state is an event. For admins."""
        access_of(principal, self.settings).need(Permission.MANAGE_PLATFORM)
        if not name.startswith("git:"):
            raise InvalidInput(f"{name[:60]!r} is no git source; its name is like git:REPO@BRANCH", field="name")
        before = self._sources.get(name)
        if before is None and len(self._sources) >= MAX:
            raise InvalidInput(f"at most {MAX} git sources report to one server", field="name")
        source = GitSource(name, state, commit, message, self.clock.now())
        if before is None or (before.state, before.commit, before.message) != (state, commit, message):
            reason = _REASONS[state](source=name, commit=commit, message=message)
            await self.writer.write(events=[Event(EventKind.AUDIT, source.at, reason)])
        self._sources[name] = source
        return source
