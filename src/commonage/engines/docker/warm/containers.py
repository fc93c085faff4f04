"""Keeps warm containers, and hands one to a session. Created by the engine; called by the launcher.

Only speed depends on this: if anything fails here, the session gets a container of its own. Each is used once, by one
attempt, and is removed with it. They are made one at a time, while no session is starting, for the kinds of session
that were started last. A container that waits is paused, so that no program of its image runs unaccounted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commonage.cancellation import to_the_end
from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.engines.containers.daemon.descriptions import bind
from commonage.engines.containers.files.control_folder import Owner, give
from commonage.engines.docker.client import Client
from commonage.engines.docker.translate import container_name
from commonage.engines.docker.warm.description import key_of
from commonage.engines.docker.warm.mounts import Folder, mount_in, namespace_of
from commonage.engines.rundir.tasks import InThread
from commonage.files.safe_path import SafePath

_log = logging.getLogger(__name__)
_COMES_WITHIN_S = 300.0  # on a busy machine, with the CPU weight of a small request
_ANSWERS_WITHIN_S = 10.0
_WAITING_MEMORY = 512 * 2**20
"""Limit of its memory until a session gets it: the scheduler does not count it."""
_FAILURES_MAX = 3
_LOOK_S = 0.5
_KINDS_MAX = 16
_INSIDE = "/run/commonage/warm"


@dataclass(frozen=True, slots=True)
class StartWarm:
    """The parts that make a container an attempt's: its own folders, and the request to template.py.

    `has_started`: the attempt's command runs, or ran. Blocks.
    """

    attempt_id: str
    folders: Sequence[Folder]
    ask: Mapping[str, Any]
    has_started: Callable[[], bool]


@dataclass(eq=False, slots=True)
class _Container:
    """One that waits. `namespace`: open descriptor of its mount namespace. The streams are the link to it."""

    id: str
    name: str
    namespace: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(eq=False, slots=True)
class _KindOfSession:
    config: Mapping[str, Any]
    waiting: list[_Container] = field(default_factory=list)
    failures: int = 0


class WarmContainers:
    """At most `most` wait at once. `folder` is for their sockets, which belong to `owner`.

    `is_busy`: sessions are starting now.
    """

    def __init__(
        self, client: Client, folder: Path, most: int, owner: Owner, in_thread: InThread, is_busy: Callable[[], bool]
    ) -> None:
        self._client = client
        self._owner = owner
        self._folder = folder
        self._most = most
        self._in_thread = in_thread
        self._is_busy = is_busy
        self._kinds: dict[str, _KindOfSession] = {}  # the last used one is last
        self._names: set[str] = set()
        self._wanted = asyncio.Event()

    def has(self, name: str) -> bool:
        """True if a container of this name is one of those that wait, or are being made."""
        return name in self._names

    async def start(self, config: Mapping[str, Any], wish: StartWarm) -> bool:
        """Start the attempt in a waiting container of this description. False if its command does not run in one."""
        kind = self._kinds.pop(key := key_of(config), None) or _KindOfSession(config)
        self._kinds[key] = kind
        for old in list(self._kinds)[:-_KINDS_MAX]:
            for one in self._kinds.pop(old).waiting:
                await self._discard(one)
        self._wanted.set()
        while kind.waiting:
            container = kind.waiting.pop(0)
            if container.reader.at_eof():
                await self._discard(container)
                continue
            return await self._hand_over(kind, container, wish)
        return False

    async def _hand_over(self, kind: _KindOfSession, container: _Container, wish: StartWarm) -> bool:
        try:
            await to_the_end(self._client.rename(container.id, container_name(wish.attempt_id)))
            await self._client.limit_memory(container.id, kind.config["HostConfig"]["Memory"])
            await self._client.unpause(container.id)
            # Its descriptors must stay open: reused, they are other folders.
            await to_the_end(self._in_thread(lambda: mount_in(container.namespace, wish.folders)))
            container.writer.write(json.dumps(wish.ask).encode() + b"\n")
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                answer = await container.reader.readline()
            refused = json.loads(answer).get("refused", "") if answer else "it ended"
        except (OSError, ValueError, AttributeError, RecursionError, EngineFailure) as error:
            refused = str(error) or type(error).__name__
        except asyncio.CancelledError:
            self._forget(container)  # with the link closed it either has the request, or ends
            raise
        if not refused or await self._in_thread(wish.has_started):
            kind.failures = 0
            self._forget(container)
            return True
        kind.failures += 1
        _log.warning("%s starts cold, because a warm container did not take it: %.300r", wish.attempt_id, refused)
        await self._discard(container)
        # It may have started while it was removed. Then it must not start again.
        return await self._in_thread(wish.has_started)

    async def keep(self, iterations: Iterations) -> None:
        """Make containers until cancelled. A turn is one container."""
        while True:
            with iterations.rest():
                await self._wanted.wait()
                while self._is_busy():  # noqa: ASYNC110 - the engine has no event for it
                    await asyncio.sleep(_LOOK_S)
            kind = await self._next_kind()
            if kind is None:
                self._wanted.clear()
                continue
            try:
                kind.waiting.append(await self._make(kind.config))
            except (EngineFailure, OSError) as error:
                kind.failures += 1
                rest = "no more of them" if kind.failures >= _FAILURES_MAX else "the next will be tried"
                _log.warning("a warm container failed (%s): %s", rest, str(error) or type(error).__name__)

    async def _next_kind(self) -> _KindOfSession | None:
        """The kind used last if it needs a container, else None. At the limit, the kind used longest ago loses one."""
        kinds = [kind for kind in self._kinds.values() if kind.failures < _FAILURES_MAX]
        if not kinds or len(kinds[-1].waiting) >= self._most:
            return None
        if sum(len(kind.waiting) for kind in self._kinds.values()) >= self._most:
            await self._discard(next(kind for kind in self._kinds.values() if kind.waiting).waiting.pop())
        return kinds[-1]

    async def _make(self, config: Mapping[str, Any]) -> _Container:
        """Raises EngineFailure, OSError."""
        mark = secrets.token_hex(6)
        name, place = container_name(f"warm-{mark}"), self._folder / mark
        self._names.add(name)
        await self._in_thread(lambda: place.mkdir(mode=0o755, parents=True))
        linked: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

        async def on_link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if linked.done():
                writer.close()
            else:
                linked.set_result((reader, writer))

        made = None
        try:
            server = await asyncio.start_unix_server(on_link, sock=_listener(place / "link"))
            try:
                await self._in_thread(lambda: give(SafePath(place) / "link", self._owner))
                host = config["HostConfig"]
                link = bind(str(place), _INSIDE, writable=False)
                limit = min(host["Memory"], _WAITING_MEMORY)
                own = {"Mounts": [*host["Mounts"], link], "Memory": limit, "MemorySwap": limit}
                made = await self._client.create(name, {**config, "HostConfig": {**host, **own}})
                if made is None:
                    raise EngineFailure(f"there is a container {name} already", retryable=True)
                await self._client.start(made)
                async with asyncio.timeout(_COMES_WITHIN_S):
                    reader, writer = await linked
            finally:
                server.close()
            await self._client.pause(made)
            return _Container(made, name, await self._namespace(made), reader, writer)
        except BaseException:
            self._names.discard(name)
            if made is not None:
                with suppress(EngineFailure):
                    await asyncio.shield(self._client.remove(made))
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)

    async def _namespace(self, container: str) -> int:
        found = await self._client.inspect(container)
        pid = int(found["State"]["Pid"]) if found is not None else 0
        return await self._in_thread(lambda: namespace_of(pid, container))

    async def close(self) -> None:
        """Remove those that wait."""
        kinds, self._kinds = self._kinds, {}
        await asyncio.gather(*(self._discard(one) for kind in kinds.values() for one in kind.waiting))

    async def _discard(self, container: _Container) -> None:
        self._forget(container)
        with suppress(EngineFailure):
            await self._client.remove(container.id)

    def _forget(self, container: _Container) -> None:
        self._names.discard(container.name)
        container.writer.close()
        os.close(container.namespace)


def _listener(path: Path) -> socket.socket:
    """A socket at a `path` of any length. The kernel accepts 107 bytes, so the path goes through the open folder."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
