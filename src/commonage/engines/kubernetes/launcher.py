"""Creates the Pod of an attempt, at most once, and removes it. Used by the engine.

The Pod is created behind a scheduling gate. Its uid is written into the run folder (`pod`), then its Secret and its
claims of devices are created, then the gate is removed. Each step may be repeated after a crash. If the uid was written
down and the Pod is gone, it is never created again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import NotPlaced
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.program import PORT, ContainerNetwork, Program, program_of
from commonage.engines.kubernetes.client import (
    CONFIG_MAPS,
    PODS,
    SECRETS,
    VOLUME_CLAIMS,
    Client,
    Refused,
    Resource,
)
from commonage.engines.kubernetes.gpus.site_gpus import SiteGpus
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest, owned
from commonage.engines.kubernetes.placement.refusals import reason_of_error
from commonage.engines.kubernetes.queues import Queues
from commonage.engines.kubernetes.run import Run
from commonage.engines.kubernetes.storage.claims import is_shared, is_smaller, updated_claim
from commonage.engines.kubernetes.tenants.applier import NETWORK_POLICIES
from commonage.engines.kubernetes.tenants.keeper import TenantKeeper
from commonage.engines.kubernetes.translate import (
    INSTALLATION,
    PodContext,
    attempt_of,
    claims_of,
    config_map_of,
    gang_policy,
    gang_service,
    is_gated,
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

SERVICES = Resource("/api/v1", "services")
STORAGE_CLASSES = Resource("/apis/storage.k8s.io/v1", "storageclasses", is_namespaced=False)
_log = logging.getLogger(__name__)


def write_uid(folder: RunFolder, uid: str) -> None:
    """Store durably which Pod is the attempt's. Raises OSError."""
    temporary = folder.path / "pod.new"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(uid)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder.path / "pod")


def read_uid(folder: RunFolder) -> str:
    """The uid of its Pod; empty if none was stored."""
    with suppress(FileNotFoundError):
        return (folder.path / "pod").read_text(encoding="ascii").strip()
    return ""


class NotPlacedError(EngineFailure):
    """The cluster has no room for the Pod now. The attempt is not tried again: its workload queues instead."""


@dataclass(eq=False)
class Launcher:
    client: Client
    installation: str
    settings: KubernetesSettings
    shared: Mapping[str, str]
    in_thread: InThread
    gpus: SiteGpus
    release: Callable[[str, str], Awaitable[None]]
    """Ends what the platform itself does with a claim (namespace, name) that one node alone can mount."""
    queues: Queues
    node_of: Callable[[str], Manifest | None]
    tenants: TenantKeeper | None = None
    _config_maps: set[tuple[str, str]] = field(default_factory=set)
    _claims: asyncio.Lock = field(default_factory=asyncio.Lock)

    def context(self, request: StartRequest) -> PodContext:
        namespace = namespace_of(request.tenant, self.settings)
        return PodContext(self.installation, namespace)

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
        with nullcontext() if self.tenants is None else self.tenants.starting(run.request.tenant):
            return await self._launch(run)

    async def _launch(self, run: Run) -> Manifest:
        request, context = run.request, self.context(run.request)
        program = self.program(request)
        pod = await self.client.find(self.path(request))
        if pod is None:
            if run.uid:
                raise EngineFailure(f"the Pod of {run.id} is gone, and is not made twice")
            await self._make_claims(request, context)
            await self._make_config_map(request, context)
            plain = pod_of(request, program, context, self.settings)
            made = self.gpus.apply(plain, request.allocation.shares)
            pod = await self._create(PODS, await self.queues.queued(made, self.node_of(request.allocation.node)))
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
            await self._connect_gang(owned(gang_policy(request, context), pod))
        return await self.client.merge(self.path(request), without_gate(pod))

    async def _connect_gang(self, policy: Manifest) -> None:
        """Without the right to make policies none is made: a namespace that restricts no traffic needs none."""
        try:
            await self.client.apply(NETWORK_POLICIES, policy)
        except Refused as error:
            if error.http_status != 403:
                raise
            _log.warning("members of a gang reach each other only if the namespace allows it: %s", error)

    async def _create(self, resource: Resource, manifest: Manifest) -> Manifest:
        try:
            return await self.client.apply(resource, manifest)
        except Refused as error:
            if error.http_status == 404 and self.tenants is None:  # the namespace
                namespace = manifest["metadata"]["namespace"]
                raise EngineFailure(
                    f"the cluster has no namespace {namespace}: create it, or set kubernetes_namespace",
                    native=error.text,
                ) from error
            if reason := reason_of_error(error.http_status, error.text):
                if isinstance(reason, NotPlaced):
                    raise NotPlacedError(reason, retryable=True) from error
                raise EngineFailure(reason) from error
            raise

    def _check_ours(self, pod: Manifest, request: StartRequest) -> None:
        if not self._is_ours(pod) or attempt_of(pod) != request.attempt_id:
            raise EngineFailure(f"there is a Pod {pod['metadata']['name']} already, and it is not ours: remove it")

    async def _make_claims(self, request: StartRequest, context: PodContext) -> None:
        """Make the claims that are not there, and let those grow that may. Claims of an admin are taken as they are."""
        async with self._claims:  # two attempts of one owner need the same claim
            for wanted in claims_of(request, context, self.settings):
                present = await self.client.find(VOLUME_CLAIMS.path(context.namespace, wanted["metadata"]["name"]))
                if present is None:
                    await self._create(VOLUME_CLAIMS, wanted)
                    continue
                if not is_shared(present):
                    await self.release(context.namespace, wanted["metadata"]["name"])
                if self._is_ours(present) and is_smaller(present, wanted):
                    await self._grow(wanted, present)

    async def _grow(self, wanted: Manifest, present: Manifest) -> None:
        """An attempt does not wait for more room, nor fail without it."""
        name = present["spec"].get("storageClassName")
        try:
            found = await self.client.find(STORAGE_CLASSES.path(None, name)) if name else None
            if grown := updated_claim(wanted, present, found):
                await self.client.apply(VOLUME_CLAIMS, grown)
        except Refused as error:
            _log.warning("the claim %s does not grow: %s", wanted["metadata"]["name"], error)

    def _is_ours(self, manifest: Manifest) -> bool:
        labels = manifest["metadata"].get("labels") or {}
        return bool(labels.get(INSTALLATION) == label_value(self.installation))

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
        try:
            return await self.client.delete(self.path(run.request), grace_s=grace_s, uid=run.uid or None)
        except Refused as error:
            if self.tenants is None or run.uid or error.http_status != 403:
                raise
            return False  # without rights in its namespace, no Pod of it was started

    async def delete_unbound(self, run: Run, pod: Manifest) -> bool:
        """Delete it unless the cluster has changed it since `pod` was read, for example bound it."""
        version = pod["metadata"]["resourceVersion"]
        return await self.client.delete(self.path(run.request), grace_s=0, uid=pod["metadata"]["uid"], version=version)
