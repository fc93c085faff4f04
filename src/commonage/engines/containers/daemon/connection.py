"""Connection to a Docker daemon for all our engines: its description, images and networks.

Descriptions go in and out as the daemon's own JSON. Every failure is an EngineFailure: no exception of the client
library leaves the engines.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiodocker import Docker
from aiodocker.exceptions import DockerError
from aiohttp.http_exceptions import HttpProcessingError

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import WaitingForDaemon
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.daemon.info import refusal_of
from commonage.engines.containers.docker_api import common_version

# The daemon's message, our message, and whether a retry may succeed.
_WORDS: tuple[tuple[str, str, bool], ...] = (
    (r"no space left on device", "the disk of the Docker daemon is full", True),
    (r"no available IPv4 addresses", "all addresses of its tenant's network are taken by containers", True),
    (r"exec: \"/bin/sh\".*(no such file|not found)", "its image has no /bin/sh, which starts the command", False),
    (r"could not select device driver.*gpu", "Docker cannot give GPUs to containers here: install the NVIDIA Container "
     "Toolkit and restart Docker, or have it read CDI specifications", False),
    (r"(unresolvable CDI devices|CDI.*not)", "Docker does not know this GPU by CDI: run `nvidia-ctk cdi generate "
     "--device-name-strategy=uuid`", False),
    (r"unsatisfied condition: cuda", "its image needs a newer NVIDIA driver than its node has", False),
    (r"device error: .*unknown device", "its GPU is not there any more, as far as NVIDIA's toolkit sees", True),
    (r"driver/library version mismatch|nvml error|driver not loaded|driver rpc error", "NVIDIA's driver does not work "
     "on its node", True),
    (r"pull access denied|repository does not exist|requested access to the resource is denied|unauthorized"
     r"|no basic auth credentials|(^|: )denied(:|$)",
     "the registry has no such image, or does not let us have it", False),
    (r"manifest (for .* )?(not found|unknown)", "the registry has no such image", False),
    (r"invalid reference format|repository name must be", "that is not a name of an image", False),
    (r"no such image", "its image is not on the node", False),
    (r"toomanyrequests", "the registry wants us to wait: too many pulls", True),
    (r"no such host|i/o timeout|Client\.Timeout|connection refused|TLS handshake timeout|network is unreachable"
     r"|server misbehaving|Temporary failure in name resolution", "the registry cannot be reached", True),
    (r"no such container|there is nothing of this name", "its container was removed before it started", True),
    (r"Pool overlaps with other one", "its node has not yet removed a network that had the same addresses", True),
    (r"[Mm]inimum memory limit", "a container needs 6 MiB of memory at least", False),
)  # fmt: skip
GONE, CONFLICT = 404, 409
_UNREACHABLE = 900  # the client library's own number for it
_MAX = 300
_REFUSED = "the Docker daemon refuses it; the server's log has its message"
# It follows a long list of wrapped callers.
_OF_TOOLKIT = re.compile(r"nvidia-container-cli: .*")
# The client library wraps the reason in two more sentences, with brackets.
_INNERMOST = re.compile(r"\[([^\[\]]+)\]+$")


class DaemonUnreachable(Unreachable):
    """The daemon does not answer, or not readably: the result of the request is unknown."""

    waiting = WaitingForDaemon()


class DaemonRefused(EngineFailure):
    """The daemon answered with a refusal. `http_status` is the response's."""

    def __init__(self, message: str, status: int, *, retryable: bool, native: str = "") -> None:
        super().__init__(message, retryable=retryable, native=native)
        self.http_status = status


@contextmanager
def translated(url: str, image: str = "") -> Iterator[None]:
    """Translate the client library's exceptions to EngineFailure. `url` is the daemon's address.

    `image` is the one that is pulled within.
    """
    try:
        yield
    except DockerError as error:
        if image and (why := refusal_of(image, str(error.message))):
            raise DaemonRefused(why, error.status, retryable=False, native=_native(str(error.message))) from error
        raise failure_of(error.status, str(error.message), url) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _unreachable(url, str(error) or type(error).__name__) from error
    except (ValueError, HttpProcessingError) as error:
        native = f"{url}: {_short(str(error))}"
        raise DaemonUnreachable("the answer of the Docker daemon cannot be read", native=native) from error


class unless_refused:
    """Pass over a refusal with one of these statuses: what follows the block runs then."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, DaemonRefused) and error.http_status in self._statuses


def failure_of(status: int, message: str, url: str = "") -> EngineFailure:
    """The failure for a message of the daemon."""
    if status == _UNREACHABLE:
        return _unreachable(url, message)
    for pattern, words, retryable in _WORDS:
        if re.search(pattern, message, re.IGNORECASE | re.DOTALL):
            return DaemonRefused(words, status, retryable=retryable, native=_native(message))
    return DaemonRefused(_REFUSED, status, retryable=status >= 500, native=_native(message))


def _unreachable(url: str, why: str) -> DaemonUnreachable:
    if found := _INNERMOST.search(why):
        why = found[1]
    return DaemonUnreachable(
        "the Docker daemon does not answer",
        native=f"at {url}: {_short(why)}. Is it running (systemctl status docker), and may this user talk to it? "
        "`commonage doctor` looks (with --engine, if `up` was given that)",
    )


def _native(message: str) -> str:
    return f"Docker: {_short(message)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    if found := _OF_TOOLKIT.search(text):
        text = found[0]
    return text if len(text) <= _MAX else f"{text[:_MAX]} …"


Json = Mapping[str, Any]
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)


class Connection:
    """One daemon at `url` (unix:///…, or tcp://…)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._docker: Docker | None = None
        self._opening = asyncio.Lock()

    async def _daemon(self) -> Docker:
        async with self._opening:
            if self._docker is None:
                with translated(self.url):
                    version = await self._common_version()
                    self._docker = Docker(url=self.url, timeout=_TIMEOUT, api_version=version)
        return self._docker

    async def _common_version(self) -> str:
        async with Docker(url=self.url, timeout=_TIMEOUT) as docker:

            async def ask(path: str) -> tuple[int, str]:
                async with docker.session.get(f"{docker.docker_host}{path}") as answer:
                    return answer.status, await answer.text()

            return await common_version(ask, self.url)

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
            self._docker = None

    async def info(self) -> Json:
        """The daemon's description of itself. Raises DaemonUnreachable."""
        with translated(self.url):
            return await (await self._daemon()).system.info()

    async def ask(self, method: str, path: str, body: Json | None = None, **filters: Sequence[str]) -> Any:
        """Send one API request, JSON both ways, `filters` in its format; return None for an empty response.

        For calls that the client library lacks, or that do more there than needed. Raises EngineFailure.
        """
        daemon = await self._daemon()
        url = f"{daemon.docker_host}/{daemon.api_version}/{path}"
        params = {"filters": json.dumps(filters)} if filters else None
        with translated(self.url):
            async with daemon.session.request(method, url, json=body, params=params) as answer:
                text = await answer.read()
            said = json.loads(text) if text.strip().startswith((b"{", b"[")) else None
        if answer.status >= 400:
            raise failure_of(answer.status, str((said or {}).get("message", text)), self.url)
        return said

    # --- images and networks ------------------------------------------------------------------------------------

    async def image(self, name: str) -> Json | None:
        """Description of a local image; None if it is not here."""
        with unless_refused(GONE), translated(self.url):
            return await (await self._daemon()).images.inspect(name)
        return None

    async def pull(self, name: str, login: Mapping[str, str] | None = None) -> AsyncIterator[Json]:
        """Pull an image, with this login to its registry; yield the daemon's progress messages.

        A refusal by its registry is no temporary error.
        """
        auth = None if login is None else dict(login)
        with translated(self.url, name):
            async for message in (await self._daemon()).images.pull(name, auth=auth, stream=True):
                yield message

    async def networks(self, label: str) -> Sequence[Json]:
        """Networks with this label, oldest first."""
        with translated(self.url):
            found = await (await self._daemon()).networks.list(filters={"label": [label]})
        return sorted(found, key=lambda one: str(one["Created"]))

    async def network(self, network: str) -> Json | None:
        """Full description, attached containers included; None if it does not exist."""
        with unless_refused(GONE), translated(self.url):
            return await (await (await self._daemon()).networks.get(network)).show()
        return None

    async def create_network(self, config: Json) -> str:
        with translated(self.url):
            return str((await (await self._daemon()).networks.create(dict(config))).id)

    async def remove_network(self, network: str) -> bool:
        """False if a container is attached to it."""
        try:
            with unless_refused(GONE), translated(self.url):
                await (await (await self._daemon()).networks.get(network)).delete()
        except DaemonRefused as error:
            if error.http_status == 403 or "active endpoints" in str(error) or "is in use" in str(error):
                return False
            raise
        return True
