"""Reservations: capacity for a tenant in a time window. Admins create and delete them; they expire at their end.

The planner keeps the capacity free (scheduler/backfill/reservations.py); this module manages the declarations. Each
change is written, and then passed to the scheduler as its new rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.signals import wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.tenants import tenant_named
from commonage.control.workloads.admission import unschedulable_request
from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unschedulable
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Node
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import (
    ReservationInfo,
    ReservationMade,
    ReservationOver,
    ReservationReassigned,
    ReservationRemoved,
)
from commonage.domain.reasons.refusals import ReservationRefused
from commonage.domain.reasons.waiting import NoNodes
from commonage.domain.requests import Request, format_duration
from commonage.domain.tenants import Reservation, Rules
from commonage.domain.time_zones import utc
from commonage.domain.windows import Window
from commonage.domain.workloads import Event, EventKind, IdSequence
from commonage.ports.clock import Clock
from commonage.ports.store import Store
from commonage.scheduler.backfill.reservations import feasible
from commonage.scheduler.model.allocations import AllocationTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest

log = logging.getLogger(__name__)
LONGEST_S = 31 * 86400.0
FURTHEST_S = 2 * 366 * 86400.0
LATE_S = 60.0  # how far in the past a window may begin: for users who enter `now`
MAX_LIVE = 2000
MAX_PLACES = 10_000
LONGEST_REST_S = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested reservation for each of `windows`: `count` times `request`, for a tenant or for one `owner` of it."""

    tenant: str
    windows: Sequence[Window]
    request: Request
    count: int = 1
    title: str = ""
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """The created reservations. `shortfalls` is why the first window that cannot be kept whole at present cannot be."""

    reservations: tuple[Reservation, ...]
    shortfalls: Reason | None = None


@dataclass(slots=True)
class Reservations:
    """All reservations that are not over. `chance` returns a random integer below its argument. `on_rules` is called
    with the scheduler's rules whenever they change.
    """

    store: Store
    live_state: LiveState
    writer: Writer
    clock: Clock
    settings: ControlSettings
    chance: Callable[[int], int]
    on_rules: Callable[[Rules], None]
    _live: dict[str, Reservation] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _adding: asyncio.Lock = field(default_factory=asyncio.Lock)  # each must fit together with those added before it
    _ids: IdSequence = field(default_factory=IdSequence)
    iterations: Iterations = field(init=False)

    def __post_init__(self) -> None:
        self.iterations = Iterations("reservations", self.clock.now)

    @property
    def rules(self) -> Rules:
        order = sorted(self._live.values(), key=lambda reservation: (reservation.starts_at, reservation.id))
        return replace(self.settings.rules, reservations=tuple(order))

    async def open(self) -> None:
        found = await self.store.reservations(after=self.clock.now())
        self._live = {reservation.id: reservation for reservation in found}
        self.on_rules(self.rules)

    def visible(self, principal: Principal) -> Sequence[Reservation]:
        """Reservations that are not over, by start: of the tenants that the caller may see."""
        principal.need(Scope.READ)
        access = access_of(principal, self.settings)
        mine = {tenant.name for tenant in access.tenants(Permission.SEE_TENANT)}
        everywhere = access.may(Permission.SEE_TENANT)
        return [one for one in self.rules.reservations if everywhere or one.tenant in mine]

    def shortfalls(self, found: Reservation) -> Reason | None:
        return self.live_state.snapshot.reserved.shortfall(found.id)

    async def add(self, principal: Principal, wanted: Wanted) -> Reserved:
        """Reserve. For admins. Raises InvalidInput, Unschedulable and Conflict, with the figures in the message."""
        access_of(principal, self.settings).need(Permission.RESERVE)
        now = self.clock.now()
        self._check(wanted, now)
        async with self._adding:
            made = tuple(
                Reservation(
                    f"r{self._ids.next(now, self.chance(1 << 20))}",
                    wanted.tenant,
                    starts_at,
                    ends_at,
                    wanted.request,
                    wanted.count,
                    wanted.title,
                    wanted.owner,
                    by=principal.name,
                )
                for starts_at, ends_at in wanted.windows
            )
            shortfalls = await self._shortfalls(made, now)
            reserved = ReservationMade(by=principal.name, reservation=_info(made[0]), more=len(made) - 1)
            event = Event(EventKind.AUDIT, now, reserved, tenant=wanted.tenant)
            await self.writer.write(events=[event], reservations=made)
            self._live.update((reservation.id, reservation) for reservation in made)
            self._tell()
        return Reserved(made, shortfalls)

    async def remove(self, principal: Principal, reservation_id: str) -> Reservation:
        """Delete a reservation; workloads started in it continue. For admins. Raises NotFound."""
        access_of(principal, self.settings).need(Permission.RESERVE)
        found = self._live.get(reservation_id)
        if found is None:
            raise NotFound(
                f"there is no reservation {reservation_id[:60]!r} that is not over", code="reservation-not-found"
            )
        if found.class_name:
            raise Conflict(
                f"Reservation {found.id} belongs to class {found.class_name}. Change the times of the class, or remove "
                f"the class with `commonage class rm {found.class_name}`.",
                code="reservation-of-class",
            )
        removed = ReservationRemoved(by=principal.name, reservation=_info(found))
        event = Event(EventKind.AUDIT, self.clock.now(), removed, tenant=found.tenant)
        await self.writer.write(events=[event], unreserved=[found.id])
        self._live.pop(reservation_id, None)
        self._tell()
        return found

    async def follow_class(self, by: str, name: str, wanted: Wanted | None) -> Reason | None:
        """Make the reservations of a class those of `wanted`; None: without any. Changes nothing that fits already.

        A window that cannot be kept is left out; returns why the first of these was.
        """
        async with self._adding:
            now = self.clock.now()
            mine = {one.starts_at: one for one in self._live.values() if one.class_name == name}
            made, refused = list[Reservation](), None
            for starts_at, ends_at in () if wanted is None else wanted.windows:
                before = mine.pop(starts_at, None)
                after = self._of_class(by, name, wanted, (starts_at, ends_at), before, now)
                if after == before:
                    continue
                try:
                    others = [one.id for one in mine.values()] + ([] if before is None else [before.id])
                    await self._shortfalls([*made, after], now, without=others)
                    made.append(after)
                except Conflict as error:
                    refused = refused or error.reason  # an earlier one stays as it is
            if not made and not mine:
                return refused
            events = [
                Event(EventKind.AUDIT, now, ReservationRemoved(by=by, reservation=_info(one)), tenant=one.tenant)
                for one in mine.values()
            ]
            events += [
                Event(EventKind.AUDIT, now, ReservationMade(by=by, reservation=_info(one), more=0), tenant=one.tenant)
                for one in made
            ]
            gone = [one.id for one in mine.values()]
            await self.writer.write(events=events, reservations=made, unreserved=gone)
            for reservation_id in gone:
                self._live.pop(reservation_id, None)
            self._live.update((one.id, one) for one in made)
            self._tell()
            return refused

    def _of_class(
        self, by: str, name: str, wanted: Wanted | None, window: Window, before: Reservation | None, now: float
    ) -> Reservation:
        assert wanted is not None
        found = before or Reservation(
            f"r{self._ids.next(now, self.chance(1 << 20))}",
            wanted.tenant,
            *window,
            wanted.request,
            class_name=name,
            by=by,
        )
        return replace(
            found,
            tenant=wanted.tenant,
            ends_at=window[1],
            request=wanted.request,
            count=wanted.count,
            title=wanted.title,
        )

    def of_class(self, name: str) -> Sequence[Reservation]:
        """The reservations of a class that are not over, by start."""
        return [one for one in self.rules.reservations if one.class_name == name]

    async def revise(self, by: str, before: Reservation, after: Reservation | None) -> None:
        """Give a reservation another owner or tenant, or cancel it (None): its own is renamed or removed."""
        now = self.clock.now()
        if after is None:
            reason: Reason = ReservationRemoved(by=by, reservation=_info(before))
        else:
            reason = ReservationReassigned(by=by, reservation=_info(after))
        event = Event(EventKind.AUDIT, now, reason, tenant=(after or before).tenant)
        if after is None:
            await self.writer.write(events=[event], unreserved=[before.id])
            self._live.pop(before.id, None)
        else:
            await self.writer.write(events=[event], reservations=[after])
            self._live[after.id] = after
        self._tell()

    async def run(self) -> None:
        while True:
            await self.tick()
            with self.iterations.rest():
                await wait_at_most(self._rest(), self._changed, self.clock)
            self._changed.clear()

    async def tick(self) -> None:
        now = self.clock.now()
        over = [reservation for reservation in self._live.values() if reservation.ends_at <= now]
        if not over or self.writer.stuck:
            return
        for reservation in over:
            del self._live[reservation.id]
        self._tell()
        events = [
            Event(EventKind.AUDIT, now, ReservationOver(reservation=_info(reservation)), tenant=reservation.tenant)
            for reservation in over
        ]
        try:
            await self.writer.write(events=events)
        except CommonageError as error:
            log.warning("cannot note that reservations are over: %s", error)

    def refresh(self) -> None:
        """Pass the rules on after the tenants or sites have changed."""
        self._tell()

    def _rest(self) -> float:
        ends = min((reservation.ends_at for reservation in self._live.values()), default=None)
        return LONGEST_REST_S if ends is None else min(LONGEST_REST_S, max(0.05, ends - self.clock.now()))

    def _tell(self) -> None:
        self.on_rules(self.rules)
        self._changed.set()

    def _check(self, wanted: Wanted, now: float) -> None:
        tenant_named(wanted.tenant, self.settings)
        if not 1 <= wanted.count <= MAX_PLACES:
            raise InvalidInput(f"count must be from 1 to {MAX_PLACES}, not {wanted.count}", field="count")
        if len(self._live) + len(wanted.windows) > MAX_LIVE:
            raise Conflict(f"{len(self._live)} reservations are not over; at most {MAX_LIVE} may be made")
        for starts_at, ends_at in wanted.windows:
            _check_window(starts_at, ends_at, now)
        sites = self.live_state.snapshot.candidates.of(wanted.tenant, wanted.request.labels)
        never = unschedulable_request(self.live_state, replace(wanted.request, sites=sites))
        if never is not None:
            raise Unschedulable(never)

    async def _shortfalls(
        self, made: Sequence[Reservation], now: float, without: Collection[str] = ()
    ) -> Reason | None:
        """Why not all of it can be kept now; None if it can. Raises Conflict if empty nodes would not suffice."""
        nodes, allocated = list(self.live_state.nodes.values()), self.live_state.allocated()
        candidates = self.live_state.snapshot.candidates
        others = [candidates.reserved(one) for one in self._live.values() if one.id not in without]
        made = [candidates.reserved(one) for one in made]
        if not nodes:
            return NoNodes()
        never, shortfalls = await asyncio.to_thread(_judge, nodes, allocated, others, made, now)
        if never is not None:
            raise Conflict(never, code="reservation-conflict")
        return shortfalls


def _judge(
    nodes: Sequence[Node],
    allocated: Sequence[AllocatedRequest],
    others: Sequence[Reservation],
    made: Sequence[Reservation],
    now: float,
) -> tuple[Reason | None, Reason | None]:
    """(why it could not be kept even if nothing ran now, why it cannot at present). Runs in a thread."""
    empty = Grid(nodes)
    grid = Grid(nodes)
    for taken in allocated:
        grid.take(taken.allocation)
    unheld, allocations = AllocationTable(empty), AllocationTable(grid, allocated)
    shortfalls = None
    known = list(others)
    for reservation in made:
        beside = [
            other for other in known if other.starts_at < reservation.ends_at and reservation.starts_at < other.ends_at
        ]
        never = feasible(empty, unheld, beside, reservation, now)
        if never is not None:
            return ReservationRefused(starts_at=reservation.starts_at, ends_at=reservation.ends_at, cause=never), None
        shortfalls = shortfalls or feasible(grid, allocations, beside, reservation, now)
        known.append(reservation)
    return None, shortfalls


def _check_window(starts_at: float, ends_at: float, now: float) -> None:
    if ends_at <= starts_at:
        raise InvalidInput(f"it would end ({_at(ends_at)}) before it begins ({_at(starts_at)})", field="ends_at")
    if starts_at < now - LATE_S:
        raise InvalidInput(f"it would have begun already, {_at(starts_at)}; now it is {_at(now)}", field="starts_at")
    if ends_at - starts_at > LONGEST_S:
        asked, most = format_duration(ends_at - starts_at), format_duration(LONGEST_S)
        raise InvalidInput(f"a window of {asked} was requested; at most {most} are allowed", field="ends_at")
    if starts_at > now + FURTHEST_S:
        raise InvalidInput(f"{_at(starts_at)} is more than two years from now", field="starts_at")


def _at(instant: float) -> str:
    return utc(instant).strftime("%Y-%m-%d %H:%M UTC")


def _info(reservation: Reservation) -> ReservationInfo:
    return ReservationInfo(
        id=reservation.id,
        tenant=reservation.tenant,
        user=reservation.owner or "",
        title=reservation.title,
        count=reservation.count,
        request=str(reservation.request),
        starts_at=reservation.starts_at,
        ends_at=reservation.ends_at,
    )
