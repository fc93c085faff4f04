"""Long connections (event streams, followed logs, commands): counted, and ended when their identity no longer holds.

Used by the API and the portal. A revoked or expired token, and an admin who is none any more, keep nothing open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from commonage.control.limits import Limits
from commonage.domain.errors import CommonageError, Forbidden, TooMany, Unavailable
from commonage.domain.principals import Principal
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
# While the hub does not answer (it restarts, say) connections stay open, but not for ever.
UNCONFIRMED_S = 300.0


class Connection(StrEnum):
    """A kind of long connection; the value is the code of the refusal of one too many."""

    STREAM = "too-many-streams"
    COMMAND = "too-many-commands"


Identify = Callable[[], Awaitable[Principal]]
"""Asks again whose the same token is. Raises Unauthenticated, Unavailable."""


class Connections:
    """All that are open."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._recheck_s = limits.recheck_s
        self._open: Counter[tuple[Connection, str | None]] = Counter()
        self._most = {
            Connection.STREAM: (limits.streams_per_user, limits.streams, "event streams and followed logs"),
            Connection.COMMAND: (limits.commands_per_user, limits.commands, "commands beside workloads"),
        }

    def count(self, kind: Connection, user: str | None = None) -> int:
        """How many are open, of one user or in all."""
        return self._open[kind, user]

    @asynccontextmanager
    async def hold(self, kind: Connection, who: Principal, again: Identify) -> AsyncIterator[None]:
        """The connection is open while the block runs, which is cancelled when the identity no longer holds.

        Raises TooMany before the block runs, and what `again` raises, or Forbidden, after it was cancelled.
        """
        mine, all_of_them = (kind, who.name), (kind, None)
        self.check(kind, who.name)
        self._open[mine] += 1
        self._open[all_of_them] += 1
        try:
            async with self._watched(who, again):
                yield
        finally:
            self._open[all_of_them] -= 1
            self._open[mine] -= 1
            if not self._open[mine]:
                del self._open[mine]

    @asynccontextmanager
    async def _watched(self, who: Principal, again: Identify) -> AsyncIterator[None]:
        ended: list[CommonageError] = []
        try:
            async with asyncio.timeout(None) as scope:

                async def watch() -> None:
                    try:
                        ended.append(await self._lost(who, again))
                    except Exception:  # nobody checks any more, so nothing may stay open
                        log.exception("the identity of %s cannot be checked", who.name)
                        ended.append(Unavailable("The identity cannot be checked now. Connect again."))
                    scope.reschedule(asyncio.get_running_loop().time())

                watching = asyncio.create_task(watch())
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if not ended:
                raise
        if ended:
            log.info("a connection of %s is ended: %s", who.name, ended[0])
            raise ended[0]

    def check(self, kind: Connection, user: str) -> None:
        """Raise TooMany if the user cannot open another one."""
        per_user, in_all, what = self._most[kind]
        mine, there = self.count(kind, user), self.count(kind)
        if mine >= per_user:
            has, most = f"the user {user} has {mine} {what} open", per_user
        elif there >= in_all:
            has, most = f"all users together have {there} {what} open", in_all
        else:
            return
        raise TooMany(f"Too many connections: {has}, at most {most} allowed. Close some first.", code=kind.value)

    async def _lost(self, who: Principal, again: Identify) -> CommonageError:
        """Why the identity no longer holds, once it does not."""
        confirmed_at = self._clock.now()
        while True:
            await self._clock.sleep(self._recheck_s)
            try:
                now = await again()
            except Unavailable as error:
                if self._clock.now() - confirmed_at > UNCONFIRMED_S:
                    return error
                continue
            except CommonageError as error:
                return error
            if now.name != who.name or not who.scopes <= now.scopes:
                return Forbidden(
                    f"the rights of {who.name} have changed since this connection was opened; connect again"
                )
            confirmed_at = self._clock.now()
