"""Sessions that are started again: another one in the place of each that its machine, and not its user, has ended.

The hub starts it, as if its user had asked: so it has the user's address, a fresh token, and a page that shows how far
it is. Told of every workload that is written. The client key of the new session names the old one, so that a restart of
the control plane in between makes no second.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from commonage.control.board import Board
from commonage.control.ledger import Ledger
from commonage.domain.errors import CommonageError, Conflict, start_failure
from commonage.domain.events import Event, EventKind
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import RestartedAs, RestartedTooOften, RestartFailed, RestartOf
from commonage.domain.turns import Turns
from commonage.domain.workloads import MOST_LOSSES, Kind, Spec, State, StopCause, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Filter, Store

log = logging.getLogger(__name__)
GIVE_UP_AFTER_S = 600.0
LONG_ENOUGH_S = 3600.0
LONGEST_PAUSE_S = 15.0
_LOOK_BACK = 200  # sessions, the newest that ended so: at start it is looked whether one was left without another
_KEY = re.compile(r"again-(\d+)-.+")
# What the hub gives each session anew.
_OF_THE_HUB = re.compile(r"JUPYTERHUB_.*|JPY_.*|COMMONAGE_URL")

Start = Callable[[Spec], Awaitable[Workload]]
"""Have the hub start a session like this; the workload that came of it."""


class Again:
    """Starts sessions again, each in a task of its own as the hub may take its time."""

    def __init__(self, store: Store, board: Board, ledger: Ledger, clock: Clock, start: Start) -> None:
        self._store, self._board, self._ledger, self._clock, self._start = store, board, ledger, clock, start
        self.turns = Turns("again", clock.now)
        self._waiting: asyncio.Queue[Workload] = asyncio.Queue()

    def changed(self, workload: Workload) -> None:
        """A workload was written."""
        if is_to_start_again(workload):
            self._waiting.put_nowait(workload)

    async def open(self) -> None:
        """Take up those that ended a moment before the control plane did."""
        which = Filter(kinds=(Kind.SESSION,), states=(State.LOST, State.STOPPED))
        page = await self._store.workloads(which, limit=_LOOK_BACK)
        for one in page.items:
            if self._clock.now() - one.since < GIVE_UP_AFTER_S:
                self.changed(one)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as starting:
            while True:
                with self.turns.rest():
                    lost = await self._waiting.get()
                starting.create_task(self._see_to(lost), name=f"again {lost.id}")

    async def _see_to(self, lost: Workload) -> None:
        """Try until it is there, its user was quicker, or it is given up. Raises nothing of ours."""
        give_up, pause = self._clock.now() + GIVE_UP_AFTER_S, 0.5
        while True:
            try:
                await self._once(lost)
                return
            except CommonageError as error:
                # A conflict is the hub's: it is still busy with the end of the old one.
                may_pass = error.is_retryable or isinstance(error, Conflict)
                if not may_pass or self._clock.now() + pause > give_up:
                    log.warning("session %s of %s is not started again: %s", lost.id, lost.spec.owner, error)
                    with suppress(CommonageError):
                        await self._tell(lost, RestartFailed(cause=start_failure(error)))
                    return
                log.info("session %s of %s is not started again yet: %s", lost.id, lost.spec.owner, error)
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _once(self, lost: Workload) -> None:
        spec, number = lost.spec, tries_of(lost) + 1
        key = f"again-{number}-{lost.id}"
        if self._is_there(lost) or await self._store.workload_by_key(spec.owner, key) is not None:
            return  # its user was quicker, or it was seen to before
        if number > MOST_LOSSES:
            await self._tell(lost, RestartedTooOften(times=number))
            return
        made = await self._start(replace(spec, key=key, variables=own_variables(spec), secrets=()))
        await self._tell(lost, RestartedAs(workload_id=made.id), EventKind.RETRYING)
        await self._tell(made, RestartOf(workload_id=lost.id, cause=lost.reason))

    def _is_there(self, lost: Workload) -> bool:
        mine = (lost.spec.owner, lost.spec.name)
        return any(one.spec.kind is Kind.SESSION and (one.spec.owner, one.spec.name) == mine for one in self._board)

    async def _tell(self, whom: Workload, what: Reason, kind: EventKind = EventKind.WARNING) -> None:
        spec, attempt = whom.spec, whom.attempt.id if whom.attempt else None
        said = Event(kind, self._clock.now(), what, whom.id, attempt, spec.owner, spec.tenant, whom.state)
        await self._ledger.write(events=[said])


def is_to_start_again(workload: Workload) -> bool:
    """True of a session that its machine's loss, or a recall, has ended, and whose owner wishes another one then."""
    return workload.spec.kind is Kind.SESSION and workload.spec.requeue and was_taken_away(workload)


def was_taken_away(workload: Workload) -> bool:
    """True if its machine's loss, or a recall, has ended it: neither its owner nor itself."""
    recalled = workload.stop is not None and workload.stop.cause is StopCause.RECALL
    return workload.state is State.LOST or (workload.state is State.STOPPED and recalled)


def tries_of(workload: Workload) -> int:
    """How many times in a row a session was started again, this time included; none once it ran for an hour."""
    attempt, found = workload.attempt, _KEY.fullmatch(workload.spec.key or "")
    if found is None or attempt is None:
        return int(found[1]) if found else 0
    ran_s = (attempt.ended_at or workload.since) - (attempt.started_at or attempt.lease.at)
    return 0 if ran_s >= LONG_ENOUGH_S else int(found[1])


def own_variables(spec: Spec) -> tuple[tuple[str, str], ...]:
    """Those that its owner gave it: of a session without the hub's, which each start sets."""
    if spec.kind is not Kind.SESSION:
        return spec.variables
    return tuple((name, value) for name, value in spec.variables if not _OF_THE_HUB.fullmatch(name))
