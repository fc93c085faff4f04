"""The Kubernetes engine: the engine port over the Pods of a cluster.

One attempt is one Pod on the node that our scheduler chose; the cluster checks and binds it, and never starts it again.
State that must survive the server is in run folders, which only the control plane sees. Created by bootstrap; used
through the port only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import HomesEndWithPods, KubernetesInUse
from commonage.domain.reasons.nodes import ClusterNodeSilent, EngineNotAnswering
from commonage.domain.resources import NodePool
from commonage.domain.statuses import Capabilities, Measurement, Phase, ProcessOwner, StartRequest
from commonage.domain.tenants import Tenant
from commonage.engines.containers.daemon.networks import Relays
from commonage.engines.containers.engine import installation_of
from commonage.engines.containers.program import shared_variables
from commonage.engines.kubernetes.agents import PodAgents
from commonage.engines.kubernetes.cache import Cache, Event, Listed, key_of
from commonage.engines.kubernetes.channels.connection import Connections
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.engines.kubernetes.channels.peers import Peers
from commonage.engines.kubernetes.channels.ports import PodRelays
from commonage.engines.kubernetes.client import NODES, PODS, Client
from commonage.engines.kubernetes.gpus.mode import GpuMode
from commonage.engines.kubernetes.gpus.modes import MODES_IN_USE
from commonage.engines.kubernetes.gpus.site_gpus import SiteGpus
from commonage.engines.kubernetes.images import PodImages
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.launcher import Launcher, read_uid
from commonage.engines.kubernetes.life import (
    RETRY_S,
    AttemptLife,
    PodStreams,
    container_of,
    starting,
)
from commonage.engines.kubernetes.logs import LogCopy
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.nodes import is_given_up, not_answering_since
from commonage.engines.kubernetes.placement.capacity import Capacity
from commonage.engines.kubernetes.placement.elastic_pools import ElasticPools, PoolCloud
from commonage.engines.kubernetes.placement.placeholders import pool_of
from commonage.engines.kubernetes.queues import Queues
from commonage.engines.kubernetes.run import Run
from commonage.engines.kubernetes.stats import measurements_of
from commonage.engines.kubernetes.storage.file_pods import FilePods
from commonage.engines.kubernetes.storage.sizes import ClaimSizes
from commonage.engines.kubernetes.tenants.keeper import TenantKeeper
from commonage.engines.kubernetes.translate import (
    CONTAINER,
    attempt_of,
    is_restricted,
    namespace_of,
    pod_name,
)
from commonage.engines.kubernetes.translate import INSTALLATION as INSTALLATION_LABEL
from commonage.engines.rundir.node_report import disk_pressure_of, free_on
from commonage.engines.rundir.runs_engine import RunsEngine
from commonage.engines.settings import KubernetesSettings
from commonage.files.safe_path import SafePath
from commonage.ports.agents import NodeAgents, OnProgress, ignore_progress
from commonage.ports.clouds import Cloud
from commonage.ports.execs import ExecStream, Terminal

_STATS_S = 10.0
_ADDRESS_KNOWN_S = 10.0  # a program may connect before the kubelet has reported the address of its Pod
_GPUS_PAUSE_S, _GPUS_READ_S = 60.0, 45.0
_log = logging.getLogger(__name__)


class KubernetesEngine(RunsEngine[Run]):
    """The engine of a site that is one Kubernetes cluster. Its data lies under `data` (kubernetes/runs).

    `agents` are the node agents, if the settings name a place for them. They trust `authority` (PEM).
    """

    _installation: str
    _channels: Connections | None = None
    _pod_relays: PodRelays | None = None
    _execs: PodExecs
    _launcher: Launcher
    _life: AttemptLife
    _images: PodImages
    _pods: Cache
    _nodes: Cache
    _capacity: Capacity
    _gpus: SiteGpus
    _file_pods: FilePods
    _claim_sizes: ClaimSizes

    def __init__(
        self,
        site: str,
        data: Path,
        *,
        settings: KubernetesSettings | None = None,
        gpu_modes: Sequence[GpuMode] = MODES_IN_USE,
        agents: NodeAgents | None = None,
        authority: str = "",
    ) -> None:
        self._settings = settings or KubernetesSettings()
        self._gpu_modes = gpu_modes
        self._data = data.absolute()
        self._folder = self._data / "kubernetes"
        super().__init__(site, "kubernetes", self._folder / "runs", self._settings)
        self._client = Client(self._settings.kubeconfig, self._settings.context)
        self._relays = Relays(self._settings.reaches, self._settings.gateway_port, admission_s=_ADDRESS_KNOWN_S)
        self.agents: PodAgents | None = None
        if agents is not None:
            self.agents = PodAgents(self._client, agents, self._settings.agents, authority, self._attempts)
        keeps = self._settings.namespaces == "kept"
        self._tenants = TenantKeeper(self._client, self._settings) if keeps else None
        self._notes: tuple[Reason, ...] = ()
        self._elastic: ElasticPools | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._release_again = False

    @property
    def _workspaces(self) -> SafePath:
        return SafePath(Path(self._settings.homes_path) if self._settings.homes_path else self._data / "workspaces")

    # --- the port: capabilities ------------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        nodes = tuple(sorted(one["metadata"]["name"] for one in self._nodes.objects)) if self._is_open else ()
        return Capabilities(
            "kubernetes",
            isolates_users=True,
            limits_memory=True,
            limits_cpu=True,
            mounts=True,
            unbounded_on=nodes,
            notes=self._notes,
        )

    @property
    def _is_open(self) -> bool:
        return hasattr(self, "_nodes")

    # --- the port: opening and closing ------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._in_thread(self._client.open)
        self._channels = await self._in_thread(self._client.channels)
        self._execs = PodExecs(self._channels)
        if self._settings.reach == "port-forward":
            self._pod_relays = PodRelays(self._channels)
        try:
            await self._in_thread(self._files.open)
            self._installation = await self._in_thread(lambda: installation_of(self._folder))
            requests = await self._in_thread(self._files.load)
        except OSError as error:
            raise EngineFailure(f"the folder {self._folder} cannot be used: {error}") from error
        settings = self._settings
        version = await self._client.version()
        ends = (HomesEndWithPods(),) if settings.homes == "empty" else ()
        self._notes = (KubernetesInUse(version=version, is_restricted=is_restricted(settings)), *ends)
        shared = shared_variables(os.environ)
        self._file_pods = FilePods(self._client, self._execs, self._installation, settings, self._our_pods)
        self._claim_sizes = ClaimSizes(self._client, self._installation, settings, self._our_pods)
        self._gpus = SiteGpus(self._client, label_value(self._installation), self._gpu_modes)
        self._launcher = Launcher(
            self._client,
            self._installation,
            settings,
            shared,
            self._in_thread,
            self._gpus,
            self._file_pods.release,
            Queues(self._client, settings.queue),
            lambda name: self._nodes.find(f"/{name}"),
            self._tenants,
        )
        self._images = PodImages(self._client, self._installation, self.site, settings, self._schedulable)
        self._elastic = ElasticPools(self._client, self._installation, settings)
        self._capacity = Capacity(label_value(self._installation), settings.tolerations, self._gpus.devices_of)
        self._peers = Peers()
        # All Pods of the cluster: the requests of other Pods are not free.
        self._pods = Cache(_All(self._client, PODS.path(None)), self._pod_changed, "Pods")
        self._nodes = Cache(_All(self._client, NODES.path(None)), self._node_changed, "nodes")
        streams = PodStreams(self._execs, self._pod_relays)
        self._life = AttemptLife(self._launcher, self._pods, self._nodes, streams, self._table, self._tasks)
        for request, port in requests:
            run = self._note(request, port)
            run.uid = await self._in_thread(partial(read_uid, run.folder))
            run.begun.set_result(None)
        await self._nodes.sync()
        await self._pods.sync()
        await self._gpus.read(self._nodes.objects)
        if settings.address:
            await self._relays.open_at(_listening_at(settings.address), self._peers.__contains__)
        await asyncio.gather(*(self._life.settle(run) for run in self._table))
        self._keep("watch pods", self._pods.keep)
        self._keep("watch nodes", self._nodes.keep)
        self._keep("read GPUs", self._keep_gpus)
        self._keep("end file Pods", self._file_pods.keep)
        if self.agents is not None:
            self._keep("publish authority", self.agents.keep_authority)
        self._keep_house()

    async def close(self) -> None:
        """Release everything. Running attempts continue, and are found again."""
        if self._is_open:
            await self._file_pods.close()
        await asyncio.gather(*(run.begun for run in self._table), return_exceptions=True)
        await self._tasks.cancel()
        if self._channels is not None:
            if self._pod_relays is not None:
                await self._pod_relays.close()
            await self._execs.close()
            await self._channels.close()
        self._relays.close()
        await self._client.close()
        self._tasks.close()

    async def _clear(self) -> None:
        """Remove this installation's Pods whose attempt is forgotten, or was never stored. Raises EngineFailure."""
        for pod in self._pods.objects:
            attempt, metadata = attempt_of(pod), pod["metadata"]
            if not self._is_ours(pod) or not attempt or attempt in self._table.runs:
                continue
            _log.warning("removing the Pod %s, whose attempt is not known any more", key_of(pod))
            await self._client.delete(PODS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
        await self._file_pods.clear()
        await self._images.clear(self._our_pods())

    def _our_pods(self) -> Sequence[Manifest]:
        return [one for one in self._pods.objects if self._is_ours(one)]

    def _is_ours(self, pod: Manifest) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return bool(labels.get(INSTALLATION_LABEL) == label_value(self._installation))

    # --- changes ----------------------------------------------------------------------------------------------------

    def _pod_changed(self, pod: Manifest, deleted: bool) -> None:
        if self._is_ours(pod):
            (self._peers.remove if deleted else self._peers.put_pod)(pod)
        if deleted:
            self._capacity.remove_pod(pod["metadata"]["uid"])
            self._gpus.remove_pod(pod["metadata"]["uid"])
        else:
            self._capacity.put_pod(pod)
            if not self._is_ours(pod):
                self._gpus.put_pod(pod)
        if self._elastic is not None and self._is_ours(pod):
            self._elastic.pod_changed(pod, deleted)
            if pool_of(pod) and pod["spec"].get("nodeName"):
                self._release_placeholders()
        run = self._table.runs.get(attempt_of(pod)) if self._is_ours(pod) else None
        if run is None:
            return
        run.last_pod = pod
        self._spawn(self._life.settle(run))

    def _node_changed(self, node: Manifest, deleted: bool) -> None:
        name = node["metadata"]["name"]
        (self._peers.remove if deleted else self._peers.put_node)(node)
        if deleted:
            self._capacity.remove_node(name)
        else:
            self._capacity.put_node(node)
            self._release_placeholders()
        for run in self._table.live():
            if run.request.allocation.node == name and run.is_running:
                self._spawn(self._life.settle(run))

    # --- GPUs -------------------------------------------------------------------------------------------------------

    async def _keep_gpus(self, iterations: Iterations) -> None:
        while True:
            with iterations.rest():
                await asyncio.sleep(_GPUS_PAUSE_S)
            try:
                async with asyncio.timeout(_GPUS_READ_S):
                    await self._gpus.read(self._nodes.objects)
            except (EngineFailure, TimeoutError) as error:
                _log.warning("cannot read the GPUs of the cluster, will try again: %s", str(error) or "no answer")
            else:
                self._capacity.forget_reports()

    # --- files ------------------------------------------------------------------------------------------------------

    def file_pods(self) -> FilePods:
        self._check_open()
        return self._file_pods

    def claim_sizes(self) -> ClaimSizes:
        self._check_open()
        return self._claim_sizes

    def _check_open(self) -> None:
        if not self._is_open:
            raise EngineFailure("the engine of the cluster is not open", retryable=True)

    # --- node pools of the cluster ----------------------------------------------------------------------------------

    def cloud(self, pool: NodePool) -> Cloud:
        """The node pool as the cluster's autoscaler grows it."""

        def pools() -> ElasticPools:
            if self._elastic is None:
                raise EngineFailure("the engine of the cluster is not open")
            return self._elastic

        return PoolCloud(pool, pools)

    def _release_placeholders(self) -> None:
        """Delete the placeholders whose nodes have joined, before work is placed there."""
        if self._elastic is None or not self._elastic.has_any or not self._nodes.is_synced:
            return
        if self._releasing is None or self._releasing.done():
            self._releasing = self._spawn(self._release(self._elastic))
        else:
            self._release_again = True

    async def _release(self, elastic: ElasticPools) -> None:
        self._release_again = True
        while self._release_again:
            self._release_again = False
            try:
                await elastic.release(self._nodes.objects)
            except EngineFailure as error:
                _log.warning("cannot delete the placeholders of node pools, will try again: %s", error)

    # --- the port: starting -----------------------------------------------------------------------------------------

    def _accept(self, request: StartRequest) -> Run:
        words = [*request.command, *(text for pair in (*request.variables, *request.secrets) for text in pair)]
        if any("\0" in word for word in words):
            raise EngineFailure(f"{request.workload_id} has a zero byte in its command or variables")
        self._launcher.check(request)
        return self._note(request, None)

    def _note(self, request: StartRequest, port: int | None) -> Run:
        folder = self._files.folder(request.attempt_id)
        fetch = partial(_fetch, self._client, self._log_path(request))
        run = Run(request, folder, starting(request), port, copy=LogCopy(folder, fetch, self._in_thread))
        self._table.runs[run.id] = run
        return run

    def _log_path(self, request: StartRequest) -> str:
        return PODS.path(namespace_of(request.tenant, self._settings), pod_name(request.attempt_id), "log")

    async def _go_on(self, run: Run, begun: int | Phase) -> None:
        self._table.tell(run, starting(run.request))
        await self._life.settle(run)

    # --- the port: stopping and forgetting ---------------------------------------------------------------------------

    async def _end(self, run: Run) -> None:
        try:
            await asyncio.shield(run.begun)
        except EngineFailure:  # it was not written to disk, so it is unknown
            await self._tasks.until_disk_works(lambda: self._stop_early(run.id))
            return
        if not run.uid:
            async with run.lock:  # while no launch is in progress
                if not run.uid:
                    await self._tasks.until_disk_works(run.folder.forbid_start)
            if not run.uid:
                await self._life.settle(run)
                return
        now = asyncio.get_running_loop().time
        while not run.ended.is_set():
            left = max(1, round(run.kill_at - now() + 0.5))
            if run.deleted_grace_s is None or left < run.deleted_grace_s - 1:
                try:
                    await self._launcher.delete(run, left)
                    run.deleted_grace_s = left
                except EngineFailure as error:
                    _log.warning("cannot end %s, will try again: %s", run.id, error)
            await run.wait_for_end(0.25 if run.kill_at - now() < self._settings.grace_s else RETRY_S)
            if not run.ended.is_set() and now() > run.kill_at + RETRY_S:
                await self._life.settle(run)

    async def _remove(self, run: Run) -> None:
        await self._launcher.delete(run, 1)

    async def _exec(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        return await self._execs.begin(container_of(run.request, self._settings), run.id, command, terminal)

    # --- the port: nodes and use -------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[NodeReport]:
        fault = self._pods.fault or self._nodes.fault
        faults: tuple[Reason, ...] = (EngineNotAnswering(error=fault),) if fault else ()
        free, disk_faults = await self._in_thread(partial(free_on, self._data))
        pressure = disk_pressure_of(free, self._settings.disk_low_mib, self._data)
        now = time.time()
        found = []
        for report in self._capacity.reports():
            node = self._nodes.find(f"/{report.name}")
            silent = node is not None and is_given_up(node, self._settings.lost_after_s, now)
            refused = self._life.backoffs.fault(report.name, now)
            own = (*report.faults, *((refused,) if refused else ()), *faults, *disk_faults)
            awaits = ClusterNodeSilent(node=report.name) if silent else None
            one = replace(report, faults=own, disk_pressure=pressure, gone=silent, awaits_admin=awaits)
            found.append(one if self.agents is None or node is None else self.agents.enrich(one, node))
        return found

    def _attempts(self) -> dict[str, str]:
        return {run.uid: run.id for run in self._table if run.is_running}

    def _schedulable(self) -> Sequence[str]:
        return [
            one["metadata"]["name"]
            for one in self._nodes.objects
            if not one["spec"].get("unschedulable") and not_answering_since(one) is None
        ]

    async def measure(self) -> Sequence[Measurement]:
        """Usage of the running attempts from the agents of their nodes, or else from kubelets, without pids.

        A kubelet's figures are up to ten seconds old.
        """
        attempts: dict[str, dict[str, str]] = {}
        for run in self._table:
            if run.is_running:
                attempts.setdefault(run.request.allocation.node, {})[run.uid] = run.id

        async def ask(name: str) -> Sequence[Measurement]:
            node = self._nodes.find(f"/{name}")
            if self.agents is not None and node is not None and self.agents.measures(node):
                return await self.agents.measure(node, attempts[name])
            async with asyncio.timeout(_STATS_S):
                summary = await self._client.get(NODES.path(None, name, "proxy/stats/summary"))
            return measurements_of(summary, attempts[name], CONTAINER)

        nodes = sorted(attempts)
        answers = await asyncio.gather(*(ask(node) for node in nodes), return_exceptions=True)
        found: list[Measurement] = []
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, EngineFailure | TimeoutError):
                _log.info("the usage of Pods on %s is unknown: %s", node, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        return found

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """None: the processes of Pods run on other nodes."""
        return []

    async def keep_tenants(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        return {} if self._tenants is None else await self._tenants.keep(tenants)

    # --- the port: environments --------------------------------------------------------------------------------------

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        await self._images.prepare(environment, node, on_progress)

    async def environments(self) -> Sequence[EnvironmentStatus]:
        return self._images.statuses()


class _All:
    """All objects of a path, for a cache."""

    def __init__(self, client: Client, path: str, selector: str = "") -> None:
        self._client, self._path, self._selector = client, path, selector

    async def list_all(self) -> Listed:
        return await self._client.list_all(self._path, self._selector)

    def watch(self, version: str) -> AsyncGenerator[Event]:
        return self._client.watch(self._path, version, self._selector)


def _fetch(client: Client, path: str, since: str | None, follow: bool) -> AsyncGenerator[bytes]:
    return client.logs(path, CONTAINER, since=since, follow=follow)


def _listening_at(address: str) -> str:
    """An address of this machine; empty (all addresses) if `address` is the name of a Service that leads here."""
    try:
        return str(ip_address(address))
    except ValueError:
        return ""
