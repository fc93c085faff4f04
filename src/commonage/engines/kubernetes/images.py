"""Environments as images of the cluster's nodes: pulled before they are needed, by a Pod that does nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import EnvironmentFailed, PullingImage
from commonage.engines.kubernetes.client import PODS, Client, Unreachable
from commonage.engines.kubernetes.gpus.mode import hide_gpus
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.statuses import Running, Surroundings, Waiting, main_status, state_of
from commonage.engines.kubernetes.translate import PREFIX, PodContext, pull_pod
from commonage.engines.rundir.tasks import SingleFlight
from commonage.engines.settings import KubernetesSettings
from commonage.ports.agents import OnProgress

_POLL_S, _AWAY_S = 0.5, 2.0
_PULLS_S = 1800.0
_T = TypeVar("_T")


class PodImages:
    """Pulls images by Pods. `schedulable`: the nodes that take work now."""

    def __init__(
        self,
        client: Client,
        installation: str,
        site: str,
        settings: KubernetesSettings,
        schedulable: Callable[[], Sequence[str]],
    ) -> None:
        self._client = client
        self._site = site
        self._settings = settings
        self._schedulable = schedulable
        self._context = PodContext(installation, settings.namespace)
        self._statuses: dict[str, EnvironmentStatus] = {}
        self._pulls = SingleFlight[None]()
        self._at_work: set[str] = set()

    def statuses(self) -> list[EnvironmentStatus]:
        return list(self._statuses.values())

    async def prepare(self, environment: Environment, node: str | None, on_progress: OnProgress) -> None:
        """Raises EngineFailure, with the environment's name, if that fails."""
        name = environment.name

        def note(reason: Reason, progress: float | None) -> None:
            self._note(name, EnvironmentState.BUILDING, reason, progress)
            on_progress(reason, progress)

        try:
            image = environment.image
            if not image:
                raise EngineFailure("it has no image, and workloads run in containers here: give it an `image`")
            nodes = [node] if node is not None else self._schedulable()
            note(PullingImage(image=image), None)
            pulls = (self._pulls.do(f"{image} {one}", partial(self._pull, image, one), note) for one in nodes)
            await asyncio.gather(*pulls)
        except EngineFailure as error:
            why = EnvironmentFailed(environment=name, error=error.message)
            self._note(name, EnvironmentState.FAILED, why)
            raise EngineFailure(why, retryable=error.is_retryable, native=error.native) from error
        self._note(name, EnvironmentState.READY)

    def _note(
        self, name: str, state: EnvironmentState, reason: Reason | None = None, progress: float | None = None
    ) -> None:
        self._statuses[name] = EnvironmentStatus(name, self._site, state, reason, progress)

    async def _pull(self, image: str, node: str, on_progress: OnProgress) -> None:
        pod = hide_gpus(pull_pod(image, node, self._context, self._settings, secrets.token_hex(3)))
        name = pod["metadata"]["name"]
        path = PODS.path(self._settings.namespace, name)
        self._at_work.add(name)
        now = asyncio.get_running_loop().time
        try:
            await _answered(partial(self._client.apply, PODS, pod), on_progress)
            until = now() + _PULLS_S
            while True:
                asked_at = now()
                if await _answered(partial(self._has_image, path, image, node, on_progress), on_progress):
                    return
                until += now() - asked_at  # what an outage takes is not the node's time
                if now() > until:
                    raise EngineFailure(f"{node} did not get the image {image} within {_PULLS_S:.0f} s", retryable=True)
                await asyncio.sleep(_POLL_S)
        finally:
            with suppress(EngineFailure):
                await self._client.delete(path, grace_s=0)
            self._at_work.discard(name)

    async def _has_image(self, path: str, image: str, node: str, on_progress: OnProgress) -> bool:
        pod = await self._client.find(path)
        if pod is None:
            raise EngineFailure(f"the Pod that pulls {image} on {node} was removed", retryable=True)
        found = state_of(pod, Surroundings(node, "", 0.0))
        if isinstance(found, Waiting):
            if isinstance(found.refusal, EnvironmentFailed):
                raise EngineFailure(found.refusal.error, retryable=not found.is_final)
            on_progress(found.reason, None)
            return bool(main_status(pod).get("imageID"))
        if isinstance(found, Running) or main_status(pod).get("imageID"):
            return True
        raise EngineFailure(f"{node} did not take the Pod that pulls {image}", retryable=True)

    async def clear(self, pods: Iterable[Manifest]) -> None:
        """Remove what an earlier process left. Raises EngineFailure."""
        for pod in pods:
            metadata = pod["metadata"]
            if f"{PREFIX}/pull" in (metadata.get("labels") or {}) and metadata["name"] not in self._at_work:
                await self._client.delete(PODS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])


async def _answered(ask: Callable[[], Awaitable[_T]], on_progress: OnProgress) -> _T:
    """Ask again while the API server does not answer."""
    while True:
        try:
            return await ask()
        except Unreachable as error:
            on_progress(error.waiting, None)
            await asyncio.sleep(_AWAY_S)
