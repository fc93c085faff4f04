"""Workloads page: the list with filters, cursor paging and live states. Admins may list all users' workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
    """GET workloads and its live stream."""
    view = _Workloads(site)
    return [
        Route("/workloads", site.page(view.page), methods=["GET"]),
        Route("/live/workloads", site.page(view.live), methods=["GET"]),
    ]


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The list's filter from the query. Invalid values are ignored, because a list is better than an error."""

    state: str = ""
    kind: str = ""
    text: str = ""
    owner: str = ""
    cursor: str = ""

    @classmethod
    def of(cls, request: Request, who: Principal) -> ListFilter:
        """Read the query; `owner` is for admins: a name, or `*` for all users (their default)."""
        query = request.query_params
        state, kind = query.get("state", ""), query.get("kind", "")
        return cls(
            state=state if state in GROUPS else "",
            kind=kind if kind in set(Kind) else "",
            text=query.get("text", "").strip()[:_LONGEST_TEXT],
            owner=query.get("owner", "").strip()[:_LONGEST_TEXT] if who.is_admin else "",
            cursor=query.get("cursor", ""),
        )

    def filter(self, who: Principal, *, any_state: bool = False) -> Filter:
        """The filter in the store's form."""
        owner: str | None = self.owner or who.name
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


class _Workloads:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def page(self, request: Request, visitor: Visitor) -> Response:
        wanted = ListFilter.of(request, visitor.who)
        values = await self._gather(visitor.who, wanted)
        return self._site.render(request, visitor, "workloads.html", {"section": "workloads", **values})

    async def live(self, request: Request, visitor: Visitor) -> Response:
        gather_values = partial(self._gather, visitor.who, ListFilter.of(request, visitor.who))
        return self._site.live(request, visitor, "parts/workload_list.html", ["tabs", "found"], gather_values)

    async def _gather(self, who: Principal, wanted: ListFilter) -> dict[str, Any]:
        queries = self._site.control.queries
        try:
            page = await queries.workloads(who, wanted.filter(who), limit=PAGE, cursor=wanted.cursor or None)
        except InvalidInput:  # a cursor of another list: begin at the start
            page = await queries.workloads(who, wanted.filter(who), limit=PAGE)
        counts = await queries.counts(who, wanted.filter(who, any_state=True))
        return {
            "wanted": wanted,
            "workloads": page.items,
            "details": {one.id: queries.details(one) for one in page.items},
            "next_cursor": page.next_cursor,
            "tabs": [(key, label, _sum(counts, states)) for key, (label, states) in GROUPS.items()],
            "of_others": who.is_admin and wanted.owner not in ("", who.name),
            "is_filtered": bool(wanted.state or wanted.kind or wanted.text or wanted.owner),
        }


def _sum(counts: Mapping[State, int], states: frozenset[State] | None) -> int:
    return sum(count for state, count in counts.items() if states is None or state in states)
