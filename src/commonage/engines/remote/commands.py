"""Commands for a site: on disk before they are accepted, delivered at once or when the link is back.

There is one entry for each attempt. Delivering a part of it twice has no further effect, so an answer that a lost link
has swallowed does no harm.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import CommonageError, EngineFailure, start_failure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NotDelivered, StoppedBeforeStart
from commonage.domain.reasons.cron_jobs import TakenByCronRun
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.remote.records import Command, Known, SiteRecords
from commonage.engines.remote.statuses import SiteAttempts
from commonage.link.exchange import ConnectionLost
from commonage.link.sites.messages.engine import (
    BUNDLE,
    FORGET,
    START,
    STOP,
    AttemptId,
    BundleUpload,
    Start,
    Stop,
)
from commonage.link.sites.transport.connection import SiteConnection
from commonage.link.sites.transport.packets import Packets, PacketType
from commonage.ports.clock import Clock

T = TypeVar("T")
_log = logging.getLogger(__name__)
WITHDRAW_AFTER_S = 30.0
"""A start that never left is withdrawn after this long without a link, so that the attempt can start elsewhere."""
RETRY_FOR_S = 600.0
_TERMINATED = 143
_CHUNK_BYTES = 256 * 1024
_AT_ONCE = 16


class Commands:
    """`connection` returns the current connection, None without one."""

    def __init__(
        self,
        records: SiteRecords,
        attempts: SiteAttempts,
        connection: Callable[[], SiteConnection | None],
        clock: Clock,
    ) -> None:
        self._records, self._attempts, self._connection, self._clock = records, attempts, connection, clock
        self._waiting: dict[str, Command] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    def restore(self, known: Known) -> None:
        self._waiting = dict(known.commands)

    def starting(self) -> Collection[Command]:
        """Those whose start is not confirmed."""
        return [one for one in self._waiting.values() if one.start is not None]

    def forgotten(self) -> Collection[str]:
        return {one.attempt_id for one in self._waiting.values() if one.forget}

    # --- to the outbox --------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> None:
        """Raises what the site's engine raises; without a link it waits."""
        known = self._waiting.get(request.attempt_id)
        if known is None or known.start is None:
            await self._keep(replace(known or self._new(request.attempt_id), start=request))
            self._attempts.dispatch(request.attempt_id, request.environment.image)
        await self._deliver_now(request.attempt_id)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        known = self._waiting.get(attempt_id) or self._new(attempt_id)
        if known.start is not None and not known.sent and self._connection() is None:
            await self._withdraw(known, StoppedBeforeStart(), _TERMINATED)
            return
        grace = grace_s if known.grace_s is None else min(grace_s, known.grace_s)
        await self._keep(replace(known, grace_s=grace))
        await self._deliver_now(attempt_id)

    async def forget(self, attempt_id: str) -> None:
        await self._keep(replace(self._waiting.get(attempt_id) or self._new(attempt_id), forget=True))
        self._attempts.forget(attempt_id)
        await self._deliver_late(attempt_id)  # there will be no second request: this side no longer knows the attempt

    def _new(self, attempt_id: str) -> Command:
        return Command(attempt_id, self._clock.now())

    async def _keep(self, command: Command) -> None:
        self._set(command)
        await self._records.keep_command(command)

    def _set(self, command: Command) -> None:
        if command.is_done:
            self._waiting.pop(command.attempt_id, None)
        else:
            self._waiting[command.attempt_id] = command

    async def withdraw_old(self, why: Reason) -> None:
        """Without a link: end the starts that never left as not delivered, so that they are requeued."""
        now = self._clock.now()
        for command in list(self._waiting.values()):
            if command.start is not None and not command.sent and now - command.at >= WITHDRAW_AFTER_S:
                await self._withdraw(command, NotDelivered(cause=why), None)

    async def _withdraw(self, command: Command, why: Reason, exit_code: int | None) -> None:
        """The end is reported once the start cannot be delivered any more, even across restarts."""
        assert command.start is not None
        try:
            await self._keep(replace(command, start=None, grace_s=None))
        except CommonageError:
            self._set(command)
            raise
        self._end(command.start, why, exit_code)

    def _end(self, request: StartRequest, why: Reason, exit_code: int | None) -> None:
        now, node = self._clock.now(), request.allocation.node
        self._attempts.end(Status(request.attempt_id, Phase.ENDED, now, node, why, exit_code=exit_code))

    # --- delivery -------------------------------------------------------------------------------------------------

    async def _deliver_now(self, attempt_id: str) -> None:
        with suppress(ConnectionLost):  # it is delivered later
            await self._deliver(attempt_id)

    async def deliver_all(self) -> None:
        """Deliver all waiting commands. A start that the site's engine refuses for good becomes the end of its
        attempt.
        """
        await asyncio.gather(*(self._deliver_late(attempt_id) for attempt_id in list(self._waiting)))

    async def _deliver_late(self, attempt_id: str) -> None:
        command = self._waiting.get(attempt_id)
        try:
            async with self._at_once:
                await self._deliver(attempt_id, late=True)
        except ConnectionLost:
            return
        except CommonageError as error:
            _log.warning("attempt %s: a command is not carried out: %s", attempt_id, error)
            if command is not None and command.start is not None and self._of(attempt_id).start is None:
                self._end(command.start, start_failure(error), 1)

    async def _deliver(self, attempt_id: str, *, late: bool = False) -> None:
        """A start or a stop that fails for another reason than the link is dropped: its caller repeats it.

        The caller of a `late` one is gone: it is repeated here for a while, if that may help. A forget is repeated as
        long as that may help. A stop goes first: a start that it overtakes never runs.
        """
        lock = self._locks.setdefault(attempt_id, asyncio.Lock())
        try:
            async with lock:
                if (command := self._of(attempt_id)).grace_s is not None:
                    stop = Stop(attempt_id, command.grace_s)
                    await self._part(attempt_id, self._request_stop(stop), "grace_s", late=late)
                if (command := self._of(attempt_id)).start is not None:
                    try:
                        await self._part(attempt_id, self._request_start(command, command.start), "start", late=late)
                    except EngineFailure as error:
                        if not isinstance(error.reason, TakenByCronRun):
                            raise
                        self._end(command.start, error.reason, None)  # lost, so that it is requeued
                if self._of(attempt_id).forget:
                    await self._part(attempt_id, self._request_forget(attempt_id), "forget", late=True)
        finally:
            if attempt_id not in self._waiting and not lock.locked():
                self._locks.pop(attempt_id, None)

    def _of(self, attempt_id: str) -> Command:
        return self._waiting.get(attempt_id) or self._new(attempt_id)

    async def _part(self, attempt_id: str, request: Awaitable[None], part: str, *, late: bool) -> None:
        command = self._of(attempt_id)
        before = getattr(command, part)
        try:
            await request
        except ConnectionLost:
            raise
        except CommonageError as error:
            in_time = part == "forget" or self._clock.now() - command.at < RETRY_FOR_S
            if not (late and error.is_retryable and in_time):
                self._done(attempt_id, part, before)
            raise
        self._done(attempt_id, part, before)

    def _done(self, attempt_id: str, part: str, before: object) -> None:
        command = self._of(attempt_id)
        if getattr(command, part) == before:  # else it was repeated with another value meanwhile
            done: dict[str, object] = {part: False if part == "forget" else None}
            rest = replace(command, **done)  # type: ignore[arg-type]  # one of its own fields
            self._set(rest)
            self._records.note_delivered(rest)

    def _required(self) -> SiteConnection:
        connection = self._connection()
        if connection is None:
            raise ConnectionLost("the site is not connected")
        return connection

    async def _request_stop(self, stop: Stop) -> None:
        await self._required().request(STOP, stop)

    async def _request_forget(self, attempt_id: str) -> None:
        await self._required().request(FORGET, AttemptId(attempt_id))

    async def _request_start(self, command: Command, request: StartRequest) -> None:
        connection = self._required()
        digest = "" if request.bundle_path is None else await upload(connection, Path(request.bundle_path))
        await self._keep(replace(self._of(command.attempt_id), sent=True))
        await connection.request(START, Start(request, digest))


async def upload(connection: SiteConnection, path: Path) -> str:
    """Upload the files of a job, unless the site has them. Returns their digest."""
    try:
        digest, size = await asyncio.to_thread(_digest, path)
        async with await connection.open(BUNDLE, BundleUpload(digest, size)) as stream:
            packets = Packets(stream)
            if await packets.read() == (PacketType.WANTED, b""):
                with path.open("rb") as file:
                    while data := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                        await stream.write(data)
                await stream.end()
                await packets.read()
    except OSError as error:
        raise EngineFailure(f"the files of the job cannot be read: {error}. Submit it again.") from error
    return digest


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size
