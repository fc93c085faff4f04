"""Workloads page: the list with filters, cursor paging and live states. Admins may list all users' workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from starlette.requests import Request
from starlette.routing import Route

from commonage.control.access import Access, access_of
from commonage.control.control import Control
from commonage.domain.errors import InvalidInput
from commonage.domain.principals import Principal
from commonage.domain.workloads import TERMINAL, Kind, State
from commonage.portal.auth import Visitor
from commonage.portal.site import Site
from commonage.ports.store import Filter

PAGE = 50
_LONGEST_TEXT = 200
# The states behind each tab above the list.
GROUPS: Mapping[str, tuple[str, frozenset[State] | None]] = {
    "": ("All", None),
    "active": ("Active", frozenset(State) - TERMINAL),
    "waiting": ("Waiting", frozenset({State.HELD, State.QUEUED})),
    "starting": ("Starting", frozenset({State.STARTING})),
    "running": ("Running", frozenset({State.RUNNING})),
    "succeeded": ("Succeeded", frozenset({State.SUCCEEDED})),
    "failed": ("Failed", frozenset({State.FAILED, State.TIMED_OUT, State.LOST})),
    "stopped": ("Stopped", frozenset({State.STOPPED})),
}


def routes(site: Site) -> list[Route]:
    return site.live_page("workloads", "workloads", ["tabs", "found"], partial(_gather, site.control))


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The list's filter from the query. Invalid values are ignored, because a list is better than an error."""

    state: str = ""
    kind: str = ""
    text: str = ""
    owner: str = ""
    cursor: str = ""

    @classmethod
    def of(cls, request: Request, access: Access) -> ListFilter:
        """Read the query; `owner` is a name, or `*` for all whose workloads the visitor may see."""
        query = request.query_params
        state, kind = query.get("state", ""), query.get("kind", "")
        return cls(
            state=state if state in GROUPS else "",
            kind=kind if kind in set(Kind) else "",
            text=query.get("text", "").strip()[:_LONGEST_TEXT],
            owner=query.get("owner", "").strip()[:_LONGEST_TEXT] if access.sees_others else "",
            cursor=query.get("cursor", ""),
        )

    def filter(self, principal: Principal, *, any_state: bool = False) -> Filter:
        owner: str | None = self.owner or principal.name
        return Filter(
            owner=None if owner == "*" else owner,
            kinds=(Kind(self.kind),) if self.kind else None,
            states=None if any_state else GROUPS[self.state][1],
            text=self.text or None,
        )

    def query(self, **changes: str) -> str:
        """The query of this list with some values changed; it starts at the first page unless a cursor is given."""
        fields = {"state": self.state, "kind": self.kind, "text": self.text, "owner": self.owner, **changes}
        given = {name: value for name, value in fields.items() if value}
        return f"?{urlencode(given)}" if given else ""

    @property
    def tag(self) -> str:
        """Differs between lists: each has its own element for its live stream, so that the old stream ends."""
        return f"{crc32(self.query(cursor=self.cursor).encode()):08x}"


async def _gather(control: Control, request: Request, visitor: Visitor) -> dict[str, Any]:
    queries, principal = control.queries, visitor.principal
    access = access_of(principal, control.settings)
    wanted = ListFilter.of(request, access)
    try:
        page = await queries.workloads(principal, wanted.filter(principal), limit=PAGE, cursor=wanted.cursor or None)
    except InvalidInput:  # a cursor of another list: begin at the start
        page = await queries.workloads(principal, wanted.filter(principal), limit=PAGE)
    counts = await queries.counts(principal, wanted.filter(principal, any_state=True))
    return {
        "wanted": wanted,
        "workloads": page.items,
        "details": {one.id: queries.details(one) for one in page.items},
        "next_cursor": page.next_cursor,
        "tabs": [(key, label, _sum(counts, states)) for key, (label, states) in GROUPS.items()],
        "of_others": access.sees_others and wanted.owner not in ("", principal.name),
        "is_filtered": bool(wanted.state or wanted.kind or wanted.text or wanted.owner),
    }


def _sum(counts: Mapping[State, int], states: frozenset[State] | None) -> int:
    return sum(count for state, count in counts.items() if states is None or state in states)
