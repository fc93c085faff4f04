"""Pulls images with this node's daemon, with progress and with the node's credentials. Used by `agent`."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from commonage.agent.containers.docker import DaemonRefused, DaemonSilent, DockerDaemon, split_image
from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.info import is_unreachable, progress_of, refusal_of, why_unreachable
from commonage.engines.rundir.tasks import SingleFlight
from commonage.ports.agents import OnProgress

_SILENCE_S = 120.0
_MAX_CONCURRENT = 16


class Puller:
    """Pulls each image once for all requests that wait for it. `node` is this node's name."""

    def __init__(self, daemon: DockerDaemon, docker_config: Path, node: str) -> None:
        self._daemon, self._docker_config, self._node = daemon, docker_config, node
        self._pulls = SingleFlight[None]()
        # Separate threads: a pull takes minutes, and other work of the agent in threads must not wait for it.
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="pulling")

    async def ensure(self, image: str, on_progress: OnProgress, login: Mapping[str, str] | None = None) -> None:
        """Pull the image if needed, with this login or (None) that of this node.

        Raises EngineFailure with the daemon's message; retryable if it may be temporary.
        """
        if not await asyncio.to_thread(self._daemon.has_image, image):
            await self._pulls.do(image, partial(self._pull, image, login), on_progress)

    async def _pull(self, image: str, login: Mapping[str, str] | None, on_progress: OnProgress) -> None:
        credentials = credentials_for(image, self._docker_config) if login is None else _header(login)
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def pull() -> None:
            layers: dict[str, tuple[int, int]] = {}
            last = None
            for message in self._daemon.pull(image, credentials, _SILENCE_S):
                if stop.is_set():
                    return
                now = progress_of(image, message, layers)
                if now != last:
                    loop.call_soon_threadsafe(on_progress, *now)
                last = now

        try:
            await loop.run_in_executor(self._threads, pull)
        except DaemonSilent as error:
            if login is not None:
                raise EngineFailure(why_unreachable(image, self._node), retryable=False) from error
            message = f"the registry of {image} sent nothing for {_SILENCE_S:.0f} s"
            raise EngineFailure(message, retryable=True) from error
        except DaemonRefused as error:  # the daemon uses 500 for the registry's refusals and for its own problems
            if why := refusal_of(image, error.daemon_message, self._node):
                raise EngineFailure(why, retryable=False, native=error.native) from error
            if login is not None and is_unreachable(error.daemon_message):
                why = why_unreachable(image, self._node)
                raise EngineFailure(why, retryable=False, native=error.native) from error
            raise
        finally:
            stop.set()

    async def close(self) -> None:
        await self._pulls.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def credentials_for(image: str, docker_config: Path) -> str:
    """The header with this node's credentials for the image's registry; empty if it has none."""
    registry = split_image(image)[0].partition("/")[0]
    try:
        known = json.loads(docker_config.read_text(encoding="utf-8"))["auths"][registry]
        user, _, password = base64.b64decode(known["auth"]).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return _header({"username": user, "password": password, "serveraddress": registry})


def _header(login: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(dict(login)).encode()).decode()
