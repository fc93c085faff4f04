"""Notices for a user's next visit: sessions that ended because of their node, or whose node has a problem.

Used by the portal's front page and, through the launch options, by the hub's form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.loops.session_restarts import ended_by_platform, restarts_of, should_restart
from commonage.control.queries.workloads import WorkloadQueries
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import SessionEnded, SessionNodeFaulty, SessionRestarted
from commonage.domain.workloads import Kind, Workload
from commonage.ports.store import Filter

LONGEST_S = 24 * 3600.0
_BEING_STARTED_S = 60.0
_LOOK_BACK = 30


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about the newest session of a name. `ended`: no session of that name runs now."""

    reason: Reason
    workload: Workload
    ended: bool


async def notices(queries: WorkloadQueries, who: Principal) -> Sequence[Notice]:
    """At most one notice for each session name, newest first; nothing older than a day."""
    page = await queries.workloads(who, Filter(owner=who.name, kinds=(Kind.SESSION,)), limit=_LOOK_BACK)
    by_name: dict[str, list[Workload]] = {}
    for one in page.items:
        by_name.setdefault(one.spec.name, []).append(one)
    found = [_of(queries, sessions) for sessions in by_name.values()]
    return [one for one in found if one is not None]


def _of(queries: WorkloadQueries, sessions: Sequence[Workload]) -> Notice | None:
    """Notice about the newest of these sessions, which share one name."""
    newest, now = sessions[0], queries.clock.now()
    name = newest.spec.name
    if not newest.state.is_terminal:
        if node_problem := queries.node_problem(newest):
            return Notice(SessionNodeFaulty(name=name, cause=node_problem), newest, False)
        before = next((one for one in sessions[1:] if ended_by_platform(one)), None)
        if before is None or not restarts_of(newest) or now - newest.submitted_at > LONGEST_S:
            return None
        return Notice(SessionRestarted(name=name, cause=before.reason), newest, False)
    if not ended_by_platform(newest) or now - newest.since > LONGEST_S:
        return None
    soon = should_restart(newest) and now - newest.since < _BEING_STARTED_S
    return Notice(SessionEnded(name=name, cause=newest.reason, is_restarting=soon), newest, True)
