"""Environments as images: present already, or pulled with progress. Waiters for the same image share one pull.

Used by the Docker and Swarm engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Literal

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import EnvironmentFailed, PullingImage
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.daemon.connection import Connection
from commonage.engines.containers.daemon.info import progress_of
from commonage.engines.rundir.tasks import SingleFlight
from commonage.ports.agents import OnProgress
from commonage.ports.registry import RegistryAccount

EnsureImage = Callable[[str, OnProgress], Awaitable[None]]
"""Makes an image of this name available where it is needed, and reports progress."""

_FIRST_WORD_S = 15.0
_SILENCE_S = 120.0


class Images:
    """The images of one daemon. `pull`: whether a missing one is pulled; `account`: credentials for our registry."""

    def __init__(
        self,
        client: Connection,
        site: str,
        pull: Literal["missing", "never"],
        account: RegistryAccount | None = None,
    ) -> None:
        self._client = client
        self._site = site
        self._pull = pull
        self._account = account
        self._statuses: dict[str, EnvironmentStatus] = {}
        self._fetches = SingleFlight[None]()

    def statuses(self) -> list[EnvironmentStatus]:
        return list(self._statuses.values())

    async def ensure(self, environment: Environment, on_progress: OnProgress, have: EnsureImage | None = None) -> None:
        """Make the image of the environment available, here or by `have`.

        Raises EngineFailure, with the environment's name, if that fails. Unreachable is passed on unchanged: ask again.
        """
        name = environment.name

        def note(reason: Reason, progress: float | None) -> None:
            self._note(name, EnvironmentState.BUILDING, reason, progress)
            on_progress(reason, progress)

        try:
            image = _image_of(environment)
            await (have or self.ensure_local)(image, note)
        except Unreachable as error:  # says nothing about the image
            self._note(name, EnvironmentState.ABSENT, error.waiting)
            raise
        except EngineFailure as error:
            why = EnvironmentFailed(environment=name, error=error.message)
            self._note(name, EnvironmentState.FAILED, why)
            raise EngineFailure(why, retryable=error.is_retryable, native=error.native) from error
        self._note(name, EnvironmentState.READY)

    def _note(
        self, name: str, state: EnvironmentState, reason: Reason | None = None, progress: float | None = None
    ) -> None:
        self._statuses[name] = EnvironmentStatus(name, self._site, state, reason, progress)

    async def ensure_local(self, image: str, on_progress: OnProgress) -> None:
        """Pull the image unless this daemon has it. Raises EngineFailure."""
        if await self._client.image(image) is None:
            await self._fetch(image, on_progress)

    async def _fetch(self, image: str, on_progress: OnProgress) -> None:
        if self._pull == "never":
            raise EngineFailure(
                f"there is no image {image} on this machine, and images are not fetched here (docker_pull = never): "
                f"load it with `docker load` or `docker import`"
            )
        on_progress(PullingImage(image=image), None)
        await self._fetches.do(image, partial(self._pull_image, image), on_progress)

    async def _pull_image(self, image: str, on_progress: OnProgress) -> None:
        layers: dict[str, tuple[int, int]] = {}
        patience = _FIRST_WORD_S
        async with aclosing(self._client.pull(image, self._account)) as messages:  # type: ignore[type-var]  # a generator in practice
            while True:
                try:
                    async with asyncio.timeout(patience):
                        message = await anext(messages)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    words = f"the registry of {image} did not answer within {patience:.0f} s"
                    raise EngineFailure(words, retryable=True) from error
                patience = _SILENCE_S
                on_progress(*progress_of(image, message, layers))

    async def close(self) -> None:
        await self._fetches.close()


def _image_of(environment: Environment) -> str:
    if environment.image:
        return environment.image
    has = "a list of requirements, but " if environment.requirements else ""
    raise EngineFailure(
        f"it has {has}no image, and workloads run in containers here: give it an `image` in the settings, or set "
        "docker_image for the environments that come with Commonage"
    )
