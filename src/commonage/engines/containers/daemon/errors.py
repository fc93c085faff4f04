"""Maps the daemon's errors to ours. No exception of its client library leaves the engines. Used by `connection`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiodocker.exceptions import DockerError
from aiohttp.http_exceptions import HttpProcessingError

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import WaitingForDaemon
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.image_pulls import refusal_of

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
