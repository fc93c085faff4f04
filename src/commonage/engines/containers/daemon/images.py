"""Environments as images: present already, or pulled with progress. Waiters for the same image share one pull.

Used by the Docker and Swarm engines.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Literal

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import EnvironmentFailed, PullingImage
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.daemon.connection import Connection
from commonage.engines.containers.daemon.info import is_unreachable, progress_of, why_unreachable
from commonage.engines.rundir.tasks import SingleFlight
from commonage.ports.agents import OnProgress
from commonage.ports.registry import GetPullToken, PullToken, RegistryAccount

EnsureImage = Callable[[str, OnProgress], Awaitable[None]]
"""Makes an image of this name available where it is needed, and reports progress."""

_FIRST_WORD_S = 15.0
_SILENCE_S = 120.0


class RegistrySilent(EngineFailure):
    """The daemon waits for a registry that does not answer."""

    retryable = True


class Logins:
    """The logins to the platform's registry: an account of this site, or tokens for single images (`get_token`)."""

    def __init__(self, account: RegistryAccount | None = None, get_token: GetPullToken | None = None) -> None:
        self._account, self._get_token = account, get_token

    def account_for(self, image: str) -> RegistryAccount | None:
        return self._account if self._account is not None and self._account.is_for(image) else None

    @asynccontextmanager
    async def token_for(self, image: str) -> AsyncIterator[PullToken | None]:
        """A token for this image, if the control plane gives one. In the block, the image is looked for and pulled.

        A failure in the block also states why the token is missing. It may be temporary, and the image may exist
        anyway.
        """
        token, refused = None, None
        try:
            token = None if self._get_token is None else await self._get_token(image)
        except EngineFailure as error:
            refused = error
        try:
            yield token
        except Unreachable:
            raise
        except EngineFailure as error:
            if refused is None:
                raise
            words = f"{error.message}. The control plane gave no access to its registry: {refused.message}"
            raise EngineFailure(words, retryable=refused.is_retryable, native=error.native) from error


class Images:
    """The images of one daemon. `pull`: whether a missing one is pulled."""

    def __init__(
        self,
        client: Connection,
        site: str,
        pull: Literal["missing", "never"],
        logins: Logins | None = None,
    ) -> None:
        self._client = client
        self._site = site
        self._pull = pull
        self.logins = logins or Logins()
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
        if (account := self.logins.account_for(image)) is not None:
            await self._pull_with(account.login, image, on_progress)
            return
        is_expired = True
        while is_expired:
            async with self.logins.token_for(image) as token:
                expires_at = math.inf if token is None else time.monotonic() + token.lasts_s
                try:
                    await self._pull_with(None if token is None else token.login, image, on_progress)
                    return
                except EngineFailure as error:
                    is_expired = time.monotonic() >= expires_at  # what was pulled so far stays
                    if is_expired:
                        continue
                    if token is not None and (isinstance(error, RegistrySilent) or is_unreachable(error.native)):
                        raise EngineFailure(why_unreachable(image), retryable=False, native=error.native) from error
                    raise

    async def _pull_with(self, login: Mapping[str, str] | None, image: str, on_progress: OnProgress) -> None:
        layers: dict[str, tuple[int, int]] = {}
        patience = _FIRST_WORD_S
        async with aclosing(self._client.pull(image, login)) as messages:  # type: ignore[type-var]  # a generator in practice
            while True:
                try:
                    async with asyncio.timeout(patience):
                        message = await anext(messages)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise RegistrySilent(f"the registry of {image} did not answer within {patience:.0f} s") from error
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
