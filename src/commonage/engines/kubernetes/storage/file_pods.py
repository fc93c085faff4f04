"""The file Pods of a cluster: made for the first look at a claim, kept while they are used, removed a minute later.

Used by `files` for the Data page and for copies of materials. A session goes first: a claim that one node alone can
mount is let go when an attempt needs it, and then opened on the attempt's node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.iterations import Iterations
from commonage.engines.kubernetes.channels.connection import Container
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.engines.kubernetes.client import PODS, VOLUME_CLAIMS, Client, Refused
from commonage.engines.kubernetes.manifest import Manifest, has_ended
from commonage.engines.kubernetes.placement.refusals import reason_of_error
from commonage.engines.kubernetes.storage.claims import is_shared
from commonage.engines.kubernetes.storage.file_pod import COMMAND, FILES, FilePlace, file_pod, is_file_pod
from commonage.engines.kubernetes.storage.pod_link import PodLink
from commonage.engines.settings import KubernetesSettings
from commonage.ports.execs import NotRunning

IDLE_S = 60.0
_KEEP_S = 10.0
_STARTS_WITHIN_S = 45.0  # a client waits for a minute
_LOOK_S = 0.25
_NEVER = ("ErrImageNeverPull", "InvalidImageName", "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError")
_STARTING = "a workload that uses this storage is starting; try again when it runs"
_log = logging.getLogger(__name__)


class NoClaim(EngineFailure):
    """The claim is not there: no workload has needed it yet."""


@dataclass(slots=True)
class _Held:
    place: FilePlace
    link: PodLink | None = None
    users: int = 0
    used_at: float = 0.0
    uid: str = ""
    is_released: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_used(self) -> bool:
        return self.users > 0


class FilePods:
    """`pods` returns our Pods as last seen."""

    def __init__(
        self,
        client: Client,
        execs: PodExecs,
        installation: str,
        settings: KubernetesSettings,
        pods: Callable[[], Sequence[Manifest]],
    ) -> None:
        self._client, self._execs, self._installation = client, execs, installation
        self._settings, self._pods = settings, pods
        self._held: dict[str, _Held] = {}

    @asynccontextmanager
    async def open(self, place: FilePlace) -> AsyncIterator[PodLink]:
        """The program that works with the files there. Raises NoClaim, Unavailable."""
        held = self._held.setdefault(place.key, _Held(place))
        held.users += 1
        try:
            async with held.lock:
                if held.link is None or not held.link.is_open:
                    held.link = await self._begin(held)
            yield held.link
        except NoClaim:
            raise
        except EngineFailure as error:
            raise Unavailable(error.reason or error.message) from error
        finally:
            held.users -= 1
            held.used_at = asyncio.get_running_loop().time()

    async def _begin(self, held: _Held) -> PodLink:
        place = held.place
        await self._start(held, await self._node_for(place))
        container = Container(place.namespace, place.pod, FILES)
        try:
            stream = await self._execs.begin(container, place.pod, COMMAND, None)
        except NotRunning as error:
            raise Unavailable("the file Pod ended before it was used; try again") from error
        link = PodLink(stream)
        try:
            await link.begin()
        except BaseException:
            await link.close()
            raise
        return link

    async def _node_for(self, place: FilePlace) -> str:
        """The node on which alone the claim can be mounted now; empty: any. Raises NoClaim, Unavailable."""
        if not place.claim:
            return ""
        found = await self._client.find(VOLUME_CLAIMS.path(place.namespace, place.claim))
        if found is None:
            raise NoClaim(f"there is no claim {place.claim} in the namespace {place.namespace} yet")
        if is_shared(found):
            return ""
        users = [
            one
            for one in self._pods()
            if _mounts(one, place.namespace, place.claim) and not is_file_pod(one) and not has_ended(one)
        ]
        if users and "ReadWriteOncePod" in found["spec"]["accessModes"]:
            raise Unavailable("one workload at a time can use this storage, and one does; use its file browser")
        if any(not one["spec"].get("nodeName") for one in users):
            raise Unavailable(_STARTING)
        return next((str(one["spec"]["nodeName"]) for one in users), "")

    async def _start(self, held: _Held, node: str) -> None:
        """Return when its container runs. Raises Unavailable, EngineFailure."""
        place = held.place
        path = PODS.path(place.namespace, place.pod)
        until = asyncio.get_running_loop().time() + _STARTS_WITHIN_S
        why = ""
        while asyncio.get_running_loop().time() < until:
            pod = await self._client.find(path)
            if held.is_released:
                if pod is not None:
                    await self._client.delete(path, grace_s=0, uid=pod["metadata"]["uid"])
                raise Unavailable(_STARTING)
            if pod is None:
                await self._create(place, node)
            elif has_ended(pod) or "deletionTimestamp" in pod["metadata"]:
                await self._client.delete(path, grace_s=0, uid=pod["metadata"]["uid"])
            elif _is_running(pod):
                held.uid = pod["metadata"]["uid"]
                return
            else:
                reason, why = _why_waiting(pod)
                if reason in _NEVER:
                    break
            await asyncio.sleep(_LOOK_S)
        _log.warning("the file Pod %s/%s does not start: %s", place.namespace, place.pod, why)
        raise Unavailable(
            f"the Pod that opens this storage does not start{f' ({why[:200]})' if why else ''}; try again later, or "
            "use a session"
        )

    async def _create(self, place: FilePlace, node: str) -> None:
        try:
            await self._client.apply(PODS, file_pod(place, self._installation, self._settings, node))
        except Refused as error:
            if reason := reason_of_error(error.http_status, error.text):
                raise EngineFailure(reason) from error
            raise

    # --- their end ----------------------------------------------------------------------------------------------------

    async def keep(self, iterations: Iterations) -> None:
        """End unused file Pods, until cancelled."""
        while True:
            with iterations.rest():
                await asyncio.sleep(_KEEP_S)
            await self.end_unused()

    async def end_unused(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, held in list(self._held.items()):
            if held.is_used() or now - held.used_at <= IDLE_S:
                continue
            async with held.lock:
                if held.is_used():
                    continue
                await self._end(held)
                if not held.is_used() and self._held.get(key) is held:
                    del self._held[key]

    async def release(self, namespace: str, claim: str) -> None:
        """Let a claim go that one node alone can mount, in use or not: an attempt needs it."""
        for key, held in list(self._held.items()):
            if (held.place.namespace, held.place.claim) == (namespace, claim):
                del self._held[key]
                held.is_released = True
                await self._end(held)

    async def clear(self) -> None:
        """Remove those that an earlier control plane left. Raises EngineFailure."""
        known = {(one.place.namespace, one.place.pod) for one in self._held.values()}
        for pod in self._pods():
            metadata = pod["metadata"]
            if is_file_pod(pod) and (metadata["namespace"], metadata["name"]) not in known:
                await self._client.delete(PODS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])

    async def close(self) -> None:
        every, self._held = list(self._held.values()), {}
        await asyncio.gather(*map(self._end, every))

    async def _end(self, held: _Held) -> None:
        if held.link is not None:
            await held.link.close()
        with suppress(EngineFailure):  # cleaned up later
            path = PODS.path(held.place.namespace, held.place.pod)
            await self._client.delete(path, grace_s=0, uid=held.uid or None)


def _mounts(pod: Manifest, namespace: str, claim: str) -> bool:
    claims = ((one.get("persistentVolumeClaim") or {}).get("claimName") for one in pod["spec"].get("volumes") or ())
    return bool(pod["metadata"]["namespace"] == namespace and claim in claims)


def _is_running(pod: Manifest) -> bool:
    known = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in one.get("state", {}) for one in known)


def _why_waiting(pod: Manifest) -> tuple[str, str]:
    """The reason of its container or of the scheduler, and its text."""
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting:
            reason = str(waiting.get("reason", ""))
            return reason, str(waiting.get("message") or reason)
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("reason", "")), str(one.get("message", ""))
    return "", ""
