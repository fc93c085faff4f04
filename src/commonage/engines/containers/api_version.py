"""Versions of Docker's API that the engines speak, and the choice of one that a daemon speaks too.

Every call names its version: without one a daemon assumes its newest, and it drops fields of a description that the
version does not know, limits and capabilities among them. The filter before the Docker socket has the same list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from commonage.domain.errors import EngineFailure

API_VERSIONS = ("1.50", "1.41")
"""Best first. 1.50 (Docker 28.2) reports which GPUs the daemon found by CDI; 1.41 (Docker 20.10) is the oldest that
knows all fields that isolate a service.
"""
_OK, _NOT_SPOKEN = 200, 400


class NoCommonVersion(EngineFailure):
    """The daemon speaks none of our versions: it is too old, or has dropped them."""

    retryable = False


async def common_version(ask: Callable[[str], Awaitable[tuple[int, str]]], url: str) -> str:
    """Return the best version (`v1.41`) that the daemon at `url` speaks. Raises NoCommonVersion, EngineFailure.

    `ask` returns the status of a GET of this path, and the message that came with it.
    """
    message = ""
    for version in API_VERSIONS:
        status, message = await ask(f"/v{version}/_ping")
        if status == _OK:
            return f"v{version}"
        if status != _NOT_SPOKEN:
            raise EngineFailure(f"the Docker daemon at {url} answers {status}: {message[:200]}", retryable=True)
    raise NoCommonVersion(
        f"the Docker daemon at {url} speaks none of the API versions {' and '.join(API_VERSIONS)}: {message[:200]}. "
        "Upgrade Docker there to 20.10 or later"
    )
