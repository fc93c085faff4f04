"""Creates the Pod of an attempt, at most once, and removes it. Used by the engine.

<<<<<<< HEAD
The Pod is created behind a scheduling gate. Its uid is written into the run folder (`pod`), then its Secret is created,
then the gate is removed. Each step may be repeated after a crash. If the uid was written down and the Pod is gone, it
is never created again.
=======
The Pod is created behind a scheduling gate. Its uid is written into the run folder (`pod`), then its Secret and its
claims of devices are created, then the gate is taken away. Each step may be repeated after a crash. An attempt whose
Pod was written down and is gone is never created again.
>>>>>>> w-kcore
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import NotPlaced
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.program import PORT, ContainerNetwork, Program, program_of
from commonage.engines.kubernetes.client import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, Client, Refused, Resource
<<<<<<< HEAD
from commonage.engines.kubernetes.manifest import Manifest, owned
=======
from commonage.engines.kubernetes.gpus.site_gpus import SiteGpus
from commonage.engines.kubernetes.manifest import Manifest
>>>>>>> w-kcore
from commonage.engines.kubernetes.placement.kueue import queue_of, queued
from commonage.engines.kubernetes.placement.refusals import reason_of_error
from commonage.engines.kubernetes.run import Run
from commonage.engines.kubernetes.translate import (
    ATTEMPT,
    INSTALLATION,
    PodContext,
    config_map_of,
    gang_service,
    home_source,
    is_gated,
    label_value,
    namespace_of,
    pod_name,
    pod_of,
    secret_of,
    without_gate,
)
from commonage.engines.rundir.runs import RunFolder
from commonage.engines.rundir.tasks import InThread
from commonage.engines.rundir.unpacking import check_bundle_exists
from commonage.engines.settings import KubernetesSettings

QUEUES_S = 60.0
SERVICES = Resource("/api/v1", "services")


def write_uid(folder: RunFolder, uid: str) -> None:
    """Write down which Pod is the attempt's, durably. Raises OSError."""
    temporary = folder.path / "pod.new"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(uid)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder.path / "pod")


def read_uid(folder: RunFolder) -> str:
    """The uid of its Pod; empty if none was written down."""
    with suppress(FileNotFoundError):
        return (folder.path / "pod").read_text(encoding="ascii").strip()
    return ""


@dataclass(eq=False)
class Launcher:
    client: Client
    installation: str
    settings: KubernetesSettings
    shared: Mapping[str, str]
    in_thread: InThread
    gpus: SiteGpus
    _queues: dict[str, tuple[float, str]] = field(default_factory=dict)
    _config_maps: set[tuple[str, str]] = field(default_factory=set)

    def context(self, request: StartRequest) -> PodContext:
        namespace = namespace_of(request.tenant, self.settings)
        return PodContext(self.installation, namespace, home_source(request, self.settings))

    def path(self, request: StartRequest) -> str:
        return PODS.path(namespace_of(request.tenant, self.settings), pod_name(request.attempt_id))

    def program(self, request: StartRequest) -> Program:
        peers = tuple(pod_name(one) for one in request.gang)
        reaches = frozenset(self.settings.reaches) if self.settings.address else frozenset()
        inside = ContainerNetwork(self.settings.address or "", reaches, request.port or PORT, peers)
        return program_of(request, inside, self.shared, {})

    def check(self, request: StartRequest) -> None:
        """Raises EngineFailure for a request that can never run in a Pod."""
        pod_of(request, self.program(request), self.context(request), self.settings)
        check_bundle_exists(request.bundle_path)

    async def launch(self, run: Run) -> Manifest:
        """Create its Pod, or continue with the existing one; return it without its gate."""
        request, context = run.request, self.context(run.request)
        program = self.program(request)
        pod = await self.client.find(self.path(request))
        if pod is None:
            if run.uid:
                raise EngineFailure(f"the Pod of {run.id} is gone, and is not made twice")
            await self._make_config_map(request, context)
            plain = pod_of(request, program, context, self.settings)
            made = self.gpus.apply(plain, request.allocation.shares)
            queue = self.settings.queue or await self._queue_of(context.namespace)
            pod = await self._create(queued(made, queue) if queue else made)
        self._check_ours(pod, request)
        if not run.uid:
            await self.in_thread(partial(write_uid, run.folder, pod["metadata"]["uid"]))
            run.uid = pod["metadata"]["uid"]
        if not is_gated(pod):
            return pod
        if program.secrets:
            await self.client.apply(SECRETS, secret_of(request, program.secrets, pod, context))
        await self.gpus.make_extras(pod, request.allocation.shares)
        if request.gang:
            await self.client.apply(SERVICES, owned(gang_service(request, context), pod))
        return await self.client.merge(self.path(request), without_gate(pod))

    async def _queue_of(self, namespace: str) -> str:
        """The LocalQueue that the namespace's label names, asked for once a minute; empty without one."""
        at, name = self._queues.get(namespace, (-QUEUES_S, ""))
        now = asyncio.get_running_loop().time()
        if now - at >= QUEUES_S:
            try:
                found = await self.client.find(NAMESPACES.path(None, namespace))
            except Refused as error:  # without the right to read namespaces, only the setting counts
                if error.http_status != 403:
                    raise
                found = None
            name = queue_of(found, ()) if found else ""
            self._queues[namespace] = now, name
        return name

    async def _create(self, pod: Manifest) -> Manifest:
        try:
            return await self.client.apply(PODS, pod)
        except Refused as error:
            if error.http_status == 404:  # the namespace
                namespace = pod["metadata"]["namespace"]
                raise EngineFailure(
                    f"the cluster has no namespace {namespace}: create it, or set kubernetes_namespace",
                    native=error.text,
                ) from error
            if reason := reason_of_error(error.http_status, error.text):
                raise EngineFailure(reason, retryable=isinstance(reason, NotPlaced)) from error
            raise

    def _check_ours(self, pod: Manifest, request: StartRequest) -> None:
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        ours = labels.get(INSTALLATION) == label_value(self.installation)
        if not ours or annotations.get(ATTEMPT) != request.attempt_id:
            raise EngineFailure(f"there is a Pod {metadata['name']} already, and it is not ours: remove it")

    async def _make_config_map(self, request: StartRequest, context: PodContext) -> None:
        made = config_map_of(request, context)
        if made is None:
            return
        key = context.namespace, made["metadata"]["name"]
        if key not in self._config_maps:
            await self.client.apply(CONFIG_MAPS, made)
            self._config_maps.add(key)

    async def delete(self, run: Run, grace_s: int) -> bool:
        """Ask the cluster to end it within this time. The uid is a precondition, so that no other Pod is deleted."""
        return await self.client.delete(self.path(run.request), grace_s=grace_s, uid=run.uid or None)

    async def delete_unbound(self, run: Run, pod: Manifest) -> bool:
        """Delete it unless the cluster has changed it since `pod` was read, for example bound it."""
        version = pod["metadata"]["resourceVersion"]
        return await self.client.delete(self.path(run.request), grace_s=0, uid=pod["metadata"]["uid"], version=version)
