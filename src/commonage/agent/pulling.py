"""Images fetched by this machine's daemon, with progress and with the credentials that the machine has."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commonage.agent.docker import DaemonRefused, DaemonSilent, DockerDaemon, split_image
from commonage.domain.errors import EngineFailure
from commonage.engines.containers.fetching import progress_of, refusal_of

Told = Callable[[str, float | None], None]
_SILENCE_S = 120.0
_AT_ONCE = 16


class Puller:
    """One fetch of each image, for all who wait for it. `node` is this machine's name."""

    def __init__(self, daemon: DockerDaemon, docker_config: Path, node: str) -> None:
        self._daemon, self._docker_config, self._node = daemon, docker_config, node
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._listeners: dict[str, list[Told]] = {}
        # Threads of their own: a fetch takes minutes, and whatever else the agent does in threads must not wait for it.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pulling")

    async def ensure(self, image: str, told: Told) -> None:
        """Have it here. Raises EngineFailure, with the daemon's words; one that may pass is retryable."""
        if await asyncio.to_thread(self._daemon.has_image, image):
            return
        listeners = self._listeners.setdefault(image, [])
        listeners.append(told)
        try:
            fetching = self._fetching.get(image)
            if fetching is None:
                fetching = self._fetching[image] = asyncio.create_task(self._fetch(image))
                fetching.add_done_callback(lambda _: self._fetching.pop(image, None))
            # Others may wait for it, too: one that gives up leaves it running.
            await asyncio.shield(fetching)
        finally:
            listeners.remove(told)

    async def _fetch(self, image: str) -> None:
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def tell(detail: str, progress: float | None) -> None:
            for told in list(self._listeners.get(image, ())):
                told(detail, progress)

        def fetch() -> None:
            layers: dict[str, tuple[int, int]] = {}
            said = None
            for message in self._daemon.pull(image, credentials_for(image, self._docker_config), _SILENCE_S):
                if stop.is_set():
                    return
                now = progress_of(message, layers)
                if now != said:
                    loop.call_soon_threadsafe(tell, *now)
                said = now

        try:
            await loop.run_in_executor(self._threads, fetch)
        except DaemonSilent as error:
            words = f"the registry of {image} said nothing for {_SILENCE_S:.0f} s"
            raise EngineFailure(words, retryable=True) from error
        except DaemonRefused as error:  # with 500, as any trouble of its own, what the registry refuses
            if why := refusal_of(image, error.said, self._node):
                raise EngineFailure(why, retryable=False) from error
            raise
        finally:
            stop.set()

    async def close(self) -> None:
        """Wait for nothing any more."""
        for task in list(self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def credentials_for(image: str, docker_config: Path) -> str:
    """The header with this machine's credentials for the image's registry; empty where it has none."""
    registry = split_image(image)[0].partition("/")[0]
    try:
        known = json.loads(docker_config.read_text(encoding="utf-8"))["auths"][registry]
        user, _, password = base64.b64decode(known["auth"]).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    words = {"username": user, "password": password, "serveraddress": registry}
    return base64.urlsafe_b64encode(json.dumps(words).encode()).decode()
