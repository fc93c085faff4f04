"""Limits on requests: rates as token buckets, and long connections. Used by the API and the portal.

Long connections (event streams, followed logs, commands) of a revoked or expired token, or of a former admin, are
closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from commonage.control.settings import Limits
from commonage.domain.errors import CommonageError, Forbidden, TooMany, Unavailable
from commonage.domain.permissions import Role
from commonage.domain.principals import Principal
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)

_MAX_KEYS = 10_000
_BURST_FACTOR = 4


class RateLimit:
    """One bucket per key: capacity `burst` requests, refilled at `per_s`. `what` is named in the error."""

    def __init__(self, clock: Clock, what: str, *, per_s: float, burst: float) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._what = what
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (tokens left, time of that) by key

    def take(self, key: str) -> None:
        """Count one request. Raises TooMany with the time until the next one is allowed."""
        now, there = self._clock.now(), self._content(key)
        if there < 1.0:
            wait_s = (1.0 - there) / self._per_s
            raise TooMany(
                f"{self._what} {key[:80]}: at most {self._per_s:g} a second and {self._burst:g} at once allowed. "
                f"Wait {math.ceil(wait_s)} s, then send fewer requests.",
                retry_after_s=wait_s,
            )
        self._put(key, there - 1.0, now)

    def give_back(self, key: str) -> None:
        self._put(key, min(self._burst, self._content(key) + 1.0), self._clock.now())

    def _content(self, key: str) -> float:
        there, at = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, there + max(0.0, self._clock.now() - at) * self._per_s)

    def _put(self, key: str, there: float, now: float) -> None:
        self._buckets[key] = (there, now)
        self._buckets.move_to_end(key)
        while len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)


def requests_of_users(clock: Clock, limits: Limits) -> RateLimit:
    """The limit on requests; keys are user names. The burst is four times the rate: a page sends several requests."""
    return RateLimit(
        clock, "Too many requests of", per_s=limits.requests_per_s, burst=_BURST_FACTOR * limits.requests_per_s
    )


# While the hub does not answer (during a restart, for example) connections stay open, but only for a limited time.
UNCONFIRMED_S = 300.0


class Connection(StrEnum):
    """A kind of long connection; the value is the reason code when the limit is exceeded."""

    STREAM = "too-many-streams"
    COMMAND = "too-many-commands"


Roles = Callable[[Principal], frozenset[tuple[str, Role]]]
Identify = Callable[[], Awaitable[Principal]]
"""Look up the principal of the same token again. Raises Unauthenticated, Unavailable."""


class Connections:
    """`roles` are those of a principal, by tenant: a connection ends when one is taken away."""

    def __init__(self, clock: Clock, limits: Limits, roles: Roles = lambda _: frozenset()) -> None:
        self._clock = clock
        self._roles = roles
        self._recheck_s = limits.recheck_s
        self._open: Counter[tuple[Connection, str | None]] = Counter()
        self._limits = {
            Connection.STREAM: (limits.streams_per_user, limits.streams, "event streams and followed logs"),
            Connection.COMMAND: (limits.commands_per_user, limits.commands, "commands in workloads"),
        }

    def count(self, kind: Connection, user: str | None = None) -> int:
        return self._open[kind, user]

    @asynccontextmanager
    async def hold(self, kind: Connection, principal: Principal, again: Identify) -> AsyncIterator[None]:
        """Count the connection as open while the block runs; cancel the block when the identity is no longer valid.

        Raises TooMany before the block runs. After a cancellation it raises the error of `again`, or Forbidden.
        """
        mine, all_of_them = (kind, principal.name), (kind, None)
        self.check(kind, principal.name)
        self._open[mine] += 1
        self._open[all_of_them] += 1
        try:
            async with self._watched(principal, again):
                yield
        finally:
            self._open[all_of_them] -= 1
            self._open[mine] -= 1
            if not self._open[mine]:
                del self._open[mine]

    @asynccontextmanager
    async def _watched(self, principal: Principal, again: Identify) -> AsyncIterator[None]:
        ended: list[CommonageError] = []
        try:
            async with asyncio.timeout(None) as scope:

                async def watch() -> None:
                    try:
                        ended.append(await self._lost(principal, again))
                    except Exception:  # the identity is no longer checked, so nothing may stay open
                        log.exception("the identity of %s cannot be checked", principal.name)
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
            log.info("a connection of %s is ended: %s", principal.name, ended[0])
            raise ended[0]

    def check(self, kind: Connection, user: str) -> None:
        """Raise TooMany if the user is at the limit."""
        per_user, in_all, what = self._limits[kind]
        mine, there = self.count(kind, user), self.count(kind)
        if mine >= per_user:
            has, most = f"the user {user} has {mine} {what} open", per_user
        elif there >= in_all:
            has, most = f"all users together have {there} {what} open", in_all
        else:
            return
        raise TooMany(f"Too many connections: {has}, at most {most} allowed. Close some first.", code=kind.value)

    async def _lost(self, principal: Principal, again: Identify) -> CommonageError:
        confirmed_at, roles = self._clock.now(), self._roles(principal)
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
            if (
                now.name != principal.name
                or not principal.scopes <= now.scopes
                or not set(principal.groups) <= set(now.groups)
                or not roles <= self._roles(now)
            ):
                return Forbidden(
                    f"the rights of {principal.name} have changed since this connection was opened; connect again"
                )
            confirmed_at = self._clock.now()
