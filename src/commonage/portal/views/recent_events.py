"""The newest events, newest first, and the titles of their workloads.

The store returns events from a number on, so this looks back in growing steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commonage.control.control import Control
from commonage.domain.errors import NotFound
from commonage.domain.principals import Principal
from commonage.domain.workloads import Event
from commonage.portal.labels import title_of

_STEPS = (200, 2_000, 20_000)
_PAGE = 500


async def recent_events(control: Control, who: Principal, want: int) -> Sequence[Event]:
    """At most `want` events that `who` may see, from the last twenty thousand."""
    last = await control.store.last_event_seq()
    found: list[Event] = []
    for step in _STEPS:
        found = await _since(control, who, max(0, last - step))
        if len(found) >= want or step >= last:
            break
    return found[-want:][::-1]


async def titles(control: Control, who: Principal, workload_ids: Iterable[str]) -> dict[str, str]:
    """The titles of these workloads; those that are gone, or that `who` may not see, are left out."""
    found = {}
    for workload_id in set(workload_ids):
        try:
            found[workload_id] = title_of(await control.queries.workload(who, workload_id))
        except NotFound:
            continue
    return found


async def _since(control: Control, who: Principal, after: int) -> list[Event]:
    found: list[Event] = []
    while True:
        page = await control.queries.events(who, after=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1].seq
