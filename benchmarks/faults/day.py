"""One day: faults by the schedule, jobs that are submitted and stopped, and a client that follows all events."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from benchmarks.faults.jobs import Job, JobKind
from benchmarks.faults.place import URL, Place, Server
from benchmarks.faults.schedule import Fault, FaultKind
from benchmarks.report import progress
from commonage.sdk import ApiError, AsyncClient
from commonage.testing.fault_proxy import Faults
from commonage.wire.events import EventOut
from commonage.wire.workloads import TERMINAL_STATES, SubmitIn

T = TypeVar("T")
_CORRUPT_EVERY_S, _CORRUPT_IN_BYTES = 1.5, 5000
_WATCHED = 20
_PATIENCE_S = 600.0
"""Clients retry this long: an answer may be lost with a connection, but what was acknowledged counts."""


@dataclass
class Day:
    """`submitted` are the ids of acknowledged workloads by job. `followed`: lines that clients followed meanwhile.

    `ended_by_itself`: how often a server ended without a request.
    """

    place: Place
    faults: Sequence[Fault]
    jobs: Sequence[Job]
    submitted: dict[str, str] = field(default_factory=dict)
    events: list[EventOut] = field(default_factory=list)
    followed: dict[str, list[str]] = field(default_factory=dict)
    ended_by_itself: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _down: set[str] = field(default_factory=set)

    async def run(self, client: AsyncClient) -> None:
        """Returns once all faults are over, and all jobs that are to be stopped were asked to."""
        began = time.monotonic()
        bundle = await self._bundle(client)
        following = asyncio.create_task(self._follow_events())
        supervising = asyncio.create_task(self._supervise())
        watched = [job.key for job in self.jobs if job.kind is JobKind.LONG][:_WATCHED]
        try:
            async with asyncio.TaskGroup() as group:
                for fault in self.faults:
                    group.create_task(self._after(began + fault.at_s, partial(self._do, fault)))
                for job in self.jobs:
                    more = self._follow_log if job.key in watched else None
                    group.create_task(self._after(began + job.at_s, partial(self._live, client, job, bundle, more)))
            await self._settle(client)
        finally:
            for task in (following, supervising):
                task.cancel()
            await asyncio.gather(following, supervising, return_exceptions=True)

    async def _after(self, at: float, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        await work()

    async def _bundle(self, client: AsyncClient) -> str:
        path = self.place.folder / "sent"
        path.write_text("the file that was sent along\n")
        return (await client.bundle(path)).digest

    # --- faults ---------------------------------------------------------------------------------------------------

    async def _do(self, fault: Fault) -> None:
        progress(f"{fault.at_s:7.1f} s: {fault.kind} of {fault.target} for {fault.for_s:.1f} s")
        match fault.kind:
            case FaultKind.KILL | FaultKind.RESTART:
                await self._end(self.place.server(fault.target), fault)
            case FaultKind.DISK_FULL:
                await self._fill(self.place.server(fault.target), fault)
            case _:
                await self._spoil(fault)
        self.done[fault.kind] += 1

    async def _end(self, server: Server, fault: Fault) -> None:
        self._down.add(server.name)
        await server.end(signal.SIGKILL if fault.kind is FaultKind.KILL else signal.SIGTERM)
        await asyncio.sleep(fault.for_s)
        server.start()
        self._down.discard(server.name)

    async def _fill(self, server: Server, fault: Fault) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(fault.for_s):
                await server.keep_full()

    async def _spoil(self, fault: Fault) -> None:
        line, until = self.place.lines[fault.target], time.monotonic() + fault.for_s
        before = line.faults
        match fault.kind:
            case FaultKind.CUT:
                line.faults = replace(before, refuses=True)
                line.cut()
            case FaultKind.HALF_OPEN:
                line.faults = replace(before, silent=True)
            case FaultKind.DELAY:
                line.faults = replace(before, delay_s=0.15)
            case FaultKind.THROTTLE:
                line.faults = replace(before, bytes_per_s=20_000.0)
            case _:
                while time.monotonic() < until:
                    line.faults.corrupt_in = _CORRUPT_IN_BYTES
                    await asyncio.sleep(_CORRUPT_EVERY_S)
        await asyncio.sleep(until - time.monotonic())
        # A long cut may have begun meanwhile, and goes on.
        line.faults = Faults(refuses=line.faults.refuses and fault.kind is not FaultKind.CUT)

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.start_again()

    def start_again(self) -> None:
        """Start servers again that ended by themselves, as a service manager does."""
        for server in self.place.servers:
            if server.name in self._down or server.process is None or server.process.poll() is None:
                continue
            if not server.found_disk_full:
                code, last = server.process.returncode, server.tail(600)
                self.ended_by_itself.append(f"{server.name} ended by itself with {code}. Its last lines:\n{last}")
                server.keep_logs()
            server.start()

    # --- clients --------------------------------------------------------------------------------------------------

    async def _live(
        self, client: AsyncClient, job: Job, bundle: str, more: Callable[[Job, str], Awaitable[None]] | None
    ) -> None:
        ask = SubmitIn.model_validate(job.body(self.place.folder / "journal", bundle))
        workload = await self._insist(lambda: client.submit(ask))
        self.submitted[job.key] = workload.workload.id
        if more is not None:
            await more(job, workload.workload.id)
        if job.stop_after_s is not None:
            await asyncio.sleep(job.stop_after_s)
            await self._insist(lambda: client.stop(workload.workload.id))

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """As a script of a user does: submits have a key, so that they may be repeated."""
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await work()
            except (ApiError, OSError):
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.5)

    async def _follow_log(self, job: Job, workload_id: str) -> None:
        lines = self.followed[job.key] = list[str]()
        offset: int | None = None
        while True:
            async with AsyncClient(URL, self.place.token) as client:
                try:
                    async for line in client.logs(workload_id, follow=True, offset=offset):
                        lines.append(line.text)
                        offset = line.offset
                    if (await client.workload(workload_id)).state in TERMINAL_STATES:
                        return
                except (ApiError, OSError):
                    await asyncio.sleep(0.5)

    async def _follow_events(self) -> None:
        while True:
            async with AsyncClient(URL, self.place.token) as client:
                with suppress(ApiError, OSError):
                    async for event in client.events(after=self.events[-1].seq if self.events else 0):
                        self.events.append(event)
            await asyncio.sleep(0.5)

    async def _settle(self, client: AsyncClient) -> None:
        """Wait until all workloads have ended, and until the events of that have arrived."""
        progress("the day is over: waiting until everything has ended")
        began = time.monotonic()
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            with suppress(ApiError, OSError):
                living = [one async for one in client.workloads() if one.state not in TERMINAL_STATES]
                ended = {one.workload_id for one in self.events if one.kind == "ended"}
                if not living and ended >= set(self.submitted.values()):
                    progress(f"everything has ended after {time.monotonic() - began:.0f} s")
                    return
            await asyncio.sleep(0.5)
