"""What a user should hear of at the next look: sessions that their machine has ended, or whose machine is in trouble.

Asked by the portal's front page and, through the launch options, by the hub's form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.control.again import is_to_start_again, tries_of, was_taken_away
from commonage.control.look import Look
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind, Workload
from commonage.ports.store import Filter

LONGEST_S = 24 * 3600.0
_BEING_STARTED_S = 60.0
_LOOK_BACK = 30


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence about the newest session of a name. `ended`: there is none of that name now."""

    text: str
    workload: Workload
    ended: bool


async def notices(look: Look, who: Principal) -> Sequence[Notice]:
    """One for each name at most, the newest first; nothing that is older than a day."""
    page = await look.workloads(who, Filter(owner=who.name, kinds=(Kind.SESSION,)), limit=_LOOK_BACK)
    by_name: dict[str, list[Workload]] = {}
    for one in page.items:
        by_name.setdefault(one.spec.name, []).append(one)
    found = [_of(look, sessions) for sessions in by_name.values()]
    return [one for one in found if one is not None]


def _of(look: Look, sessions: Sequence[Workload]) -> Notice | None:
    """About the newest of these, which have one name."""
    newest, now = sessions[0], look.clock.now()
    what = f"Your session {newest.spec.name}" if newest.spec.name else "Your session"
    if not newest.state.is_terminal:
        if told := look.trouble(newest):
            return Notice(f"{what}: {told}.", newest, False)
        before = next((one for one in sessions[1:] if was_taken_away(one)), None)
        if before is None or not tries_of(newest) or now - newest.submitted_at > LONGEST_S:
            return None
        words = f"{what} was started again, as it had ended: {before.reason}. What was not saved is gone."
        return Notice(words, newest, False)
    if not was_taken_away(newest) or now - newest.since > LONGEST_S:
        return None
    soon = is_to_start_again(newest) and now - newest.since < _BEING_STARTED_S
    return Notice(f"{what} ended: {newest.reason}.{' It is being started again.' if soon else ''}", newest, True)
