"""Follows a session from the queue until it answers, and reports the steps to JupyterHub's progress page.

The spawner follows one session per start; the control plane's event stream triggers each check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from commonage.sdk.asynchronous import AsyncClient
from commonage.sdk.errors import ApiError
from commonage.wire.workloads import TERMINAL_STATES, ExplanationOut, WorkloadOut

_REFRESH_S = 5.0  # without an event: the queue moves although this session has no event
# The polling interval of the session's server. It grows with the time since the start, when a short delay matters less,
# so that more sessions can start at once.
_POLL_MIN_S, _POLL_MAX_S, _POLL_FRACTION = 0.05, 0.5, 0.02
_PERCENT = {"held": 5, "queued": 10, "starting": 40, "running": 80}
_LAST_LINES = 10


class SessionEnded(Exception):
    """The session ended before it answered. `str(error)` is the reason with its last lines of output; `state` is a
    terminal state.
    """

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


@dataclass
class Steps:
    """The steps of the progress page: each reader gets all earlier steps, then new ones, until `close`."""

    _events: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False

    def add(self, message: str, percent: int) -> None:
        """Add a message, unless it is the same as the last one."""
        event = {"message": message, "progress": percent}
        if not self._events or self._events[-1] != event:
            self._events.append(event)
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def read(self) -> AsyncIterator[dict[str, Any]]:
        read = 0
        while True:
            news = self._news
            for event in self._events[read:]:
                yield dict(event)
            read = len(self._events)
            if self._closed:
                return
            if news is self._news:
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Follower:
    """Follows the workload `workload_id` and reports its progress to `on_progress` (message, percent).

    It polls the session's server at `path` until it answers.
    """

    def __init__(
        self, client: AsyncClient, workload_id: str, path: str, on_progress: Callable[[str, int], None]
    ) -> None:
        self._client = client
        self._id = workload_id
        self._path = path
        self._polling_since = 0.0  # in the event loop's time
        self._on_progress = on_progress
        self._highest = 0  # the highest percentage shown since it was last in the queue
        self._changed = asyncio.Event()

    async def wait_until_ready(self) -> str:
        """The address of the session, http://HOST:PORT, once it answers. Raises SessionEnded; waits while the API is
        unreachable.
        """
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                self._changed.clear()
                workload = await self._refresh()
                if workload is not None and workload.state in TERMINAL_STATES:
                    raise SessionEnded(await self._why_ended(workload), workload.state)
                if workload is not None and workload.state == "running" and workload.internal_url:
                    address = urlsplit(workload.internal_url)
                    if await self._answers(address.hostname or "", address.port or 80):
                        return f"{address.scheme}://{address.netloc}"
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _REFRESH_S)
        finally:
            listening.cancel()

    async def _refresh(self) -> WorkloadOut | None:
        """Fetch the workload and show its state; None if the API is unreachable."""
        try:
            workload = await self._client.workload(self._id)
            message = await self._message(workload)
        except ApiError as error:
            if not error.retryable:
                raise SessionEnded(f"the control plane no longer knows this session: {error.detail}", "lost") from error
            self._on_progress("The control plane does not answer; waiting for it", _PERCENT["held"])
            return None
        # Image progress fills the bar further than the following steps would.
        waits = workload.state in {"held", "queued"}
        self._highest = _percent(workload) if waits else max(self._highest, _percent(workload))
        self._on_progress(message, self._highest)
        return workload

    async def _message(self, workload: WorkloadOut) -> str:
        if workload.state in {"held", "queued"}:
            return _waiting(await self._client.explain(self._id))
        if workload.state == "running":
            return f"Jupyter is starting on {workload.node}"
        return " ".join(one.message for one in (workload.reason, *workload.notes))

    async def _listen(self) -> None:
        """Wake the follower at each event of the workload."""
        # Without the stream (for example while the control plane restarts), polling every few seconds must suffice.
        while True:
            with contextlib.suppress(ApiError):
                async with aclosing(self._client.events(self._id, after=0)) as events:
                    async for _ in events:
                        self._changed.set()
            await asyncio.sleep(_REFRESH_S)

    async def _answers(self, host: str, port: int) -> bool:
        """True once something answers there; False when the workload should be checked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REFRESH_S
        while not self._changed.is_set() and loop.time() < deadline:
            self._polling_since = self._polling_since or loop.time()
            if await _responds(host, port, self._path, deadline - loop.time()):
                return True
            elapsed = loop.time() - self._polling_since
            await asyncio.sleep(min(max(_POLL_MIN_S, _POLL_FRACTION * elapsed), _POLL_MAX_S))
        return False

    async def _why_ended(self, workload: WorkloadOut) -> str:
        reason = workload.reason.message
        lines: list[str] = []
        with contextlib.suppress(ApiError):  # without its log there is still the reason
            async for line in self._client.logs(self._id, tail=_LAST_LINES):
                lines.append(line.text)
        return "\n".join([reason, *lines]) if lines and workload.state != "stopped" else reason


async def _responds(host: str, port: int, path: str, within_s: float) -> bool:
    """True if an HTTP server answers, with any status.

    An open port does not suffice: Docker's own proxy opens it before anything in the container listens.
    """
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode("ascii", "replace"))
                return bool(await reader.read(1))
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _percent(workload: WorkloadOut) -> int:
    """The percentage of the bar: the completed part of the slow steps of a start."""
    percent = _PERCENT.get(workload.state, 100)
    if workload.state == "starting" and workload.progress is not None:
        return percent + int(workload.progress * (_PERCENT["running"] - percent - 1))
    return percent


def _waiting(explanation: ExplanationOut) -> str:
    """The reason for waiting, in one line, with the workloads ahead, if any."""
    ahead = "; ".join(one.text for one in explanation.jobs_ahead)
    return f"{explanation.summary} Ahead of it: {ahead}." if ahead else explanation.summary
