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
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import CommonageError, EngineFailure, start_failure
from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    EndedFromOutside,
    ExternalActor,
    NotPlaced,
    PodNotPrepared,
    RemovedFromOutside,
    Starting,
    StoppedBeforeStart,
    UnpackingFiles,
)
from commonage.domain.reasons.engines import HomesEndWithPods, KubernetesInUse
from commonage.domain.reasons.nodes import ClusterNodeSilent, EngineNotAnswering
from commonage.domain.resources import NodePool
from commonage.domain.statuses import Capabilities, Measurement, Phase, ProcessOwner, StartRequest, Status
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.daemon.networks import Relays
from commonage.engines.containers.engine import installation_of
from commonage.engines.containers.lifecycle import PAUSES_S
from commonage.engines.containers.program import PORT, shared_variables
from commonage.engines.containers.status_reader import write_end
from commonage.engines.kubernetes.agents import PodAgents
from commonage.engines.kubernetes.cache import Cache, Event, Listed, key_of
from commonage.engines.kubernetes.channels.archives import send_files
from commonage.engines.kubernetes.channels.connection import Connections, Container
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.engines.kubernetes.channels.ports import PodRelays
from commonage.engines.kubernetes.client import NODES, PODS, Client
from commonage.engines.kubernetes.events import last_warning
from commonage.engines.kubernetes.gpus.mode import GRANTED, VISIBLE, GpuMode, annotation
from commonage.engines.kubernetes.gpus.modes import MODES_IN_USE
from commonage.engines.kubernetes.gpus.site_gpus import SiteGpus
from commonage.engines.kubernetes.images import PodImages
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.launcher import Launcher, NotPlacedError, read_uid
from commonage.engines.kubernetes.logs import LogCopy
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.nodes import is_given_up, not_answering_since
from commonage.engines.kubernetes.placement.capacity import Capacity
from commonage.engines.kubernetes.placement.elastic_pools import ElasticPools, PoolCloud
from commonage.engines.kubernetes.placement.placeholders import pool_of
from commonage.engines.kubernetes.placement.refusals import NodeBackoffs
from commonage.engines.kubernetes.queues import Queues
from commonage.engines.kubernetes.run import Run
from commonage.engines.kubernetes.stats import measurements_of
from commonage.engines.kubernetes.statuses import (
    Ended,
    Running,
    Surroundings,
    Waiting,
    state_of,
    taken_by_kueue,
    waits_for_files,
    why_lost,
)
from commonage.engines.kubernetes.translate import (
    CONTAINER,
    FILES,
    attempt_of,
    is_gated,
    is_restricted,
    namespace_of,
    pod_name,
)
from commonage.engines.kubernetes.translate import INSTALLATION as INSTALLATION_LABEL
from commonage.engines.rundir.node_report import disk_pressure_of, free_on
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.runs_engine import RunsEngine
from commonage.engines.rundir.tasks import InThread, retry_start
from commonage.engines.rundir.unpacking import check_bundle_exists
from commonage.engines.settings import KubernetesSettings
from commonage.files.safe_path import SafePath
from commonage.ports.agents import NodeAgents, OnProgress, ignore_progress
from commonage.ports.clouds import Cloud
from commonage.ports.execs import OUT, ExecStream, Terminal

RETRY_S = 2.0
_TERMINATED, _KILLED = 143, 137
_STATS_S = 10.0
_GPUS_PAUSE_S, _GPUS_READ_S = 60.0, 45.0
_PART_BYTES = 64 * 1024
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class KubernetesEngine(RunsEngine[Run]):
    """The engine of a site that is one Kubernetes cluster. Its data lies under `data` (kubernetes/runs).

    `agents` are those of the nodes, which trust `authority` (PEM), if the settings name a place for them.
    """

    _installation: str
    _channels: Connections | None = None
    _pod_relays: PodRelays | None = None
    _execs: PodExecs
    _launcher: Launcher
    _images: PodImages
    _pods: Cache
    _nodes: Cache
    _capacity: Capacity
    _gpus: SiteGpus

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
        self._relays = Relays(self._settings.reaches, self._settings.gateway_port)
        self.agents: PodAgents | None = None
        if agents is not None:
            self.agents = PodAgents(self._client, agents, self._settings.agents, authority, self._attempts)
        self._copies: dict[str, LogCopy] = {}
        self._notes: tuple[Reason, ...] = ()
        self._backoffs = NodeBackoffs()
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
        self._gpus = SiteGpus(self._client, label_value(self._installation), self._gpu_modes)
        self._launcher = Launcher(
            self._client, self._installation, settings, shared, self._in_thread, self._gpus,
            Queues(self._client, settings.queue), lambda name: self._nodes.find(f"/{name}"),
        )  # fmt: skip
        self._images = PodImages(self._client, self._installation, self.site, settings, self._schedulable)
        self._elastic = ElasticPools(self._client, self._installation, settings)
        self._capacity = Capacity(label_value(self._installation), settings.tolerations, self._gpus.devices_of)
        # All Pods of the cluster: what others request is not free.
        self._pods = Cache(_All(self._client, PODS.path(None)), self._pod_changed, "Pods")
        self._nodes = Cache(_All(self._client, NODES.path(None)), self._node_changed, "nodes")
        for request, port in requests:
            run = self._note(request, port)
            run.uid = await self._in_thread(partial(read_uid, run.folder))
            run.begun.set_result(None)
        await self._nodes.sync()
        await self._pods.sync()
        await self._gpus.read(self._nodes.objects)
        if settings.address:
            await self._relays.open_at(_listening_at(settings.address), self._admits)
        await asyncio.gather(*(self._settle(run) for run in self._table))
        self._keep("watch pods", self._pods.keep)
        self._keep("watch nodes", self._nodes.keep)
        self._keep("read GPUs", self._keep_gpus)
        if self.agents is not None:
            self._keep("publish authority", self.agents.keep_authority)
        self._keep_house()

    def _admits(self, peer: str) -> bool:
        """True for the address of a Pod of ours, or of a node, which may stand for its Pods."""
        pods = ((one.get("status") or {}).get("podIP") for one in self._pods.objects if self._is_ours(one))
        nodes = (address["address"] for one in self._nodes.objects for address in one["status"].get("addresses") or ())
        return peer in {*pods, *nodes}

    async def close(self) -> None:
        """Release everything. Running attempts continue, and are found again."""
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
        """Remove Pods of ours whose attempt is forgotten, or was never written down. Raises EngineFailure."""
        for pod in self._pods.objects:
            attempt, metadata = attempt_of(pod), pod["metadata"]
            if not self._is_ours(pod) or not attempt or attempt in self._table.runs:
                continue
            _log.warning("removing the Pod %s, whose attempt is not known any more", key_of(pod))
            await self._client.delete(PODS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
        await self._images.clear(one for one in self._pods.objects if self._is_ours(one))

    def _is_ours(self, pod: Manifest) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return bool(labels.get(INSTALLATION_LABEL) == label_value(self._installation))

    # --- changes ----------------------------------------------------------------------------------------------------

    def _pod_changed(self, pod: Manifest, deleted: bool) -> None:
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
        self._spawn(self._settle(run))

    def _node_changed(self, node: Manifest, deleted: bool) -> None:
        name = node["metadata"]["name"]
        if deleted:
            self._capacity.remove_node(name)
        else:
            self._capacity.put_node(node)
            self._release_placeholders()
        for run in self._table.live():
            if run.request.allocation.node == name and run.is_running:
                self._spawn(self._settle(run))

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

    async def _note_gpus(self, run: Run, pod: Manifest) -> None:
        """Write the uuids of its GPUs to its Pod, where its mode tells them."""

        async def variable() -> str:
            command = ("/bin/sh", "-c", f'echo "${VISIBLE}"')
            stream = await self._execs.begin(self._container(run.request), run.id, command, None)
            said = b""
            try:
                while (one := await stream.read()) is not None and len(said) < _PART_BYTES:
                    said += one[1] if one[0] == OUT else b""
            finally:
                await stream.close()
            return said.decode(errors="replace")

        try:
            if uuids := await self._gpus.granted(pod, variable):
                noted = {"uid": run.uid, "annotations": {GRANTED: ",".join(uuids)}}
                await self._client.merge(self._launcher.path(run.request), {"metadata": noted})
        except CommonageError as error:
            _log.info("it is not known which GPUs %s has: %s", run.id, error)

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
        run = Run(request, folder, self._starting(request), port)
        fetch = partial(_fetch, self._client, self._log_path(request))
        self._copies[run.id] = LogCopy(folder, fetch, self._in_thread)
        self._table.runs[run.id] = run
        return run

    def _log_path(self, request: StartRequest) -> str:
        return PODS.path(namespace_of(request.tenant, self._settings), pod_name(request.attempt_id), "log")

    def _drop(self, run: Run) -> None:
        super()._drop(run)
        self._copies.pop(run.id, None)

    def _starting(self, request: StartRequest, reason: Reason | None = None, progress: float | None = None) -> Status:
        node = request.allocation.node
        return Status(request.attempt_id, Phase.STARTING, time.time(), node, reason or Starting(node=node), progress)

    async def _go_on(self, run: Run, begun: int | Phase) -> None:
        self._table.tell(run, self._starting(run.request))
        await self._settle(run)

    def _launch(self, run: Run) -> None:
        if not run.is_launching:
            run.launching = self._spawn(self._launch_in_background(run))

    async def _launch_in_background(self, run: Run) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            self._table.tell(run, self._starting(run.request, reason, progress))

        async def launch() -> None:
            async with run.lock:
                if run.ending is None and run.status.phase is Phase.STARTING:
                    run.last_pod = await self._launcher.launch(run)

        try:
            await retry_start(launch, PAUSES_S, on_progress, not_for=(Unreachable, NotPlacedError))
        except Unreachable as error:
            on_progress(error.waiting, None)
            self._settle_soon_again(run)
            return
        except OSError as error:
            _log.warning("cannot start %s, will try again: %s", run.id, error)
            self._settle_soon_again(run)
            return
        except EngineFailure as error:
            _log.warning("cannot start %s: %s", run.id, error)
            await self._give_up(run, Exit(None if error.is_retryable else 1, start_failure(error), time.time()))
        await self._settle(run)

    async def _give_up(self, run: Run, end: Exit) -> None:
        """Record the end of an attempt that cannot be started, once its Pod certainly does not run."""
        async with run.lock:
            if run.uid:
                try:
                    pod = await self._client.find(self._launcher.path(run.request))
                    if pod is not None and not is_gated(pod):
                        return  # the answer to the last change was lost: it may run
                except EngineFailure:
                    return  # looked at again
            await self._until_disk_works(run.folder.forbid_start)
            await self._until_disk_works(partial(_write_end, run, end))
            with suppress(EngineFailure):  # removed with the attempt, at the latest
                await self._launcher.delete(run, 0)

    # --- changes of one attempt -------------------------------------------------------------------------------------

    async def _settle(self, run: Run) -> None:
        """Report the status of its Pod; start it if it was not started."""
        async with run.lock:
            if run.status.phase is Phase.ENDED:
                return
            try:
                await self._look(run)
                run.last_error = ""
            except (EngineFailure, OSError) as error:
                if str(error) != run.last_error:
                    _log.warning("cannot look what became of %s, will try again: %s", run.id, error)
                run.last_error = str(error)
                self._settle_soon_again(run)

    def _settle_soon_again(self, run: Run) -> None:
        if run.again is None:
            run.again = self._spawn(self._settle_after_pause(run))

    async def _settle_after_pause(self, run: Run) -> None:
        await asyncio.sleep(RETRY_S)
        run.again = None
        await self._settle(run)

    async def _look(self, run: Run) -> None:
        if (end := await self._in_thread(run.folder.exit)) is not None:
            self._tell_end(run, end, run.status.started_at)
            return
        if await self._in_thread(run.folder.runner) is not None:  # stopped before it started
            await self._launcher.delete(run, 0)
            await self._end_with(run, Exit(_TERMINATED, StoppedBeforeStart(), time.time()), None)
            return
        pod = await self._pod_of(run)
        if pod is None:
            if run.uid:
                await self._end_with(run, await self._vanished(run), run.status.started_at)
            else:
                self._launch(run)
            return
        if not run.uid or is_gated(pod):
            self._launch(run)
            return
        await self._judge(run, pod)

    async def _pod_of(self, run: Run) -> Manifest | None:
        """Its Pod from the cache, or from the API server if the cache does not have it. None: it does not exist."""
        key = f"{namespace_of(run.request.tenant, self._settings)}/{pod_name(run.id)}"
        pod = self._pods.find(key)
        if pod is None and run.uid:
            pod = await self._client.find(self._launcher.path(run.request))
        if pod is None or (run.uid and pod["metadata"]["uid"] != run.uid):
            return None
        run.last_pod = pod
        return pod

    def _around(self, run: Run) -> Surroundings:
        request = run.request
        stopping = run.ending is not None
        return Surroundings(request.allocation.node, request.environment.name, time.time(), stopping)

    async def _vanished(self, run: Run) -> Exit:
        """The end of an attempt whose Pod is gone, from its last known state."""
        last = run.last_pod
        if last is not None and last["metadata"]["uid"] == run.uid:
            found = state_of(last, self._around(run))
            if isinstance(found, Ended) and (run.withdrawn is None or found.started_at is not None):
                return found.exit
            if run.ending is None and (stopped := taken_by_kueue(last, run.request.allocation.node)):
                return Exit(None, stopped, time.time())
        node = run.request.allocation.node
        if run.withdrawn is not None:
            return _withdrawn_end(run.withdrawn)
        if run.ending is not None:
            over = asyncio.get_running_loop().time() >= run.kill_at
            return Exit(_KILLED if over else _TERMINATED, None, time.time())
        if lost := why_lost(node, self._nodes.find(f"/{node}")):
            return Exit(None, lost, time.time())
        return Exit(None, RemovedFromOutside() if last is None else _from_outside(node), time.time())

    async def _judge(self, run: Run, pod: Manifest) -> None:
        around = self._around(run)
        found = state_of(pod, around)
        lost = why_lost(around.node, self._nodes.find(f"/{around.node}")) if self._nodes.is_synced else None
        if isinstance(found, Ended) and run.withdrawn is not None and found.started_at is None:
            await self._end_with(run, _withdrawn_end(run.withdrawn), None)
        elif isinstance(found, Ended):
            await self._end_with(run, found.exit, found.started_at)
        elif lost is not None and pod["spec"].get("nodeName"):
            await self._end_with(run, Exit(None, lost, time.time()), run.status.started_at)
        elif isinstance(found, Running):
            self._running(run, pod, found)
        else:
            await self._waiting(run, pod, found)

    def _running(self, run: Run, pod: Manifest, found: Running) -> None:
        request = run.request
        if request.wants_port and not found.address:
            self._settle_soon_again(run)
            return
        url = self._url(run, found.address or "") if request.wants_port else None
        now = time.time()
        self._backoffs.started(request.allocation.node)
        started = run.status.started_at or max(found.started_at or now, request.allocation.at)
        status = Status(run.id, Phase.RUNNING, now, request.allocation.node, url=url, started_at=started)
        before = run.status
        if (before.phase, before.url) != (status.phase, status.url):
            self._table.tell(run, status)
            if request.allocation.shares and not annotation(pod, GRANTED):
                self._spawn(self._note_gpus(run, pod))
        if run.following is None or run.following.done():
            run.following = self._spawn(self._copies[run.id].follow())

    def _url(self, run: Run, pod_ip: str) -> str | None:
        """Where its port is reached; None if no address of this machine is free for it."""
        port = run.request.port or PORT
        place: tuple[str, int] | None = (_host(pod_ip), port)
        if self._pod_relays is not None:
            place = self._pod_relays.address(run.id, self._container(run.request), port)
        return None if place is None else f"http://{place[0]}:{place[1]}"

    async def _waiting(self, run: Run, pod: Manifest, found: Waiting) -> None:
        if found.refusal is not None:
            if self._is_overdue(run, found.refusal, found) and await self._withdraw(run, pod, found.refusal, found):
                return
            self._settle_soon_again(run)
        else:
            run.refused_as = None
        reason = found.reason
        if waits_for_files(pod) and run.withdrawn is None:
            reason = UnpackingFiles()
            if run.sending is None:
                run.sending = self._spawn(self._send_files(run))
        if run.status.reason != reason:
            self._table.tell(run, self._starting(run.request, reason))

    def _is_overdue(self, run: Run, refusal: Reason, found: Waiting) -> bool:
        """Whether the cluster has had its time. It begins again where another deadline begins."""
        now, subject = asyncio.get_running_loop().time(), type(refusal) if found.is_bound else NotPlaced
        if subject is not run.refused_as:
            run.refused_as, run.refused_since = subject, now
        settings = self._settings
        limit = settings.prepare_timeout_s if subject is PodNotPrepared else settings.room_timeout_s
        return found.is_final or now - run.refused_since > limit

    async def _withdraw(self, run: Run, pod: Manifest, refusal: Reason, found: Waiting) -> bool:
        """Delete its Pod because of the refusal; False if the cluster bound it meanwhile."""
        if found.is_bound:
            # Its program may start at any moment, so its end is what the cluster reports.
            if isinstance(refusal, PodNotPrepared) and run.withdrawn is None:
                refusal = replace(refusal, error=await last_warning(self._client, pod))
            await self._withdraw_bound(run, refusal)
            return True
        if not await self._launcher.delete_unbound(run, pod):
            return False
        await self._end_with(run, Exit(None, refusal, time.time()), None)
        return True

    async def _send_files(self, run: Run) -> None:
        """Send the files of the job to the container that waits for them; look at the Pod again."""
        request, why = run.request, None
        folder, bundle = self._launcher.program(request).cwd, Path(request.bundle_path or "")
        try:
            check_bundle_exists(bundle)
            await send_files(self._execs, self._container(request, FILES), _parts(bundle, self._in_thread), folder)
        except EngineFailure as error:
            _log.warning("cannot send the files of %s: %s", run.id, error)
            why = None if error.is_retryable else start_failure(error)
        except OSError as error:
            _log.warning("cannot read the files of %s, will try again: %s", run.id, error)
        async with run.lock:
            run.sending = None
            if why is not None and run.ending is None:
                with suppress(EngineFailure):  # tried again: the container still waits
                    await self._withdraw_bound(run, why)
        self._settle_soon_again(run)

    async def _withdraw_bound(self, run: Run, why: Reason) -> None:
        """Delete the Pod of an attempt whose container cannot be made. It has ended once the Pod is gone."""
        if run.withdrawn is None:
            await self._launcher.delete(run, 1)
            run.withdrawn = why
        self._settle_soon_again(run)

    async def _end_with(self, run: Run, end: Exit, started_at: float | None) -> None:
        """Copy the rest of its output, write its end down, and report it."""
        if run.uid and started_at is not None:
            await self._copies[run.id].finish(run.following)
        elif run.following is not None:
            run.following.cancel()
        earliest = run.request.allocation.at
        started = None if started_at is None else max(started_at, earliest)
        end = replace(end, at=min(max(end.at, started or earliest), time.time()))
        await self._in_thread(partial(_write_end, run, end))
        self._backoffs.refused(run.request.allocation.node, end.reason, time.time())
        self._tell_end(run, end, run.status.started_at or started)

    def _tell_end(self, run: Run, end: Exit, started_at: float | None) -> None:
        if self._pod_relays is not None:
            self._pod_relays.end(run.id)
        status = Status(
            run.id, Phase.ENDED, end.at, run.request.allocation.node, end.reason,
            exit_code=end.code, oom=end.oom, started_at=started_at,
        )  # fmt: skip
        self._table.tell(run, status)

    async def _until_disk_works(self, work: Callable[[], _T]) -> _T:
        while True:
            try:
                return await self._in_thread(work)
            except OSError as error:
                _log.warning("will try again in %.0f s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)

    # --- the port: stopping and forgetting ---------------------------------------------------------------------------

    async def _end(self, run: Run) -> None:
        try:
            await asyncio.shield(run.begun)
        except EngineFailure:  # it was not written to disk, so it is unknown
            await self._until_disk_works(lambda: self._stop_early(run.id))
            return
        if not run.uid:
            async with run.lock:  # while no launch is at work
                if not run.uid:
                    await self._until_disk_works(run.folder.forbid_start)
            if not run.uid:
                await self._settle(run)
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
                await self._settle(run)

    async def _remove(self, run: Run) -> None:
        self._copies.pop(run.id, None)
        await self._client.delete(self._launcher.path(run.request), grace_s=1, uid=run.uid or None)

    async def _exec(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        return await self._execs.begin(self._container(run.request), run.id, command, terminal)

    def _container(self, request: StartRequest, name: str = CONTAINER) -> Container:
        return Container(namespace_of(request.tenant, self._settings), pod_name(request.attempt_id), name)

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
            refused = self._backoffs.fault(report.name, now)
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
        """Usage of the running attempts, as the agents of their nodes or the kubelets report it, without pids.

        That of a kubelet is up to ten seconds old.
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
                _log.info("nobody tells what the Pods of %s use: %s", node, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        return found

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """None: the processes of Pods run on other nodes."""
        return []

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


async def _parts(bundle: Path, in_thread: InThread) -> AsyncGenerator[bytes]:
    """Raises OSError."""
    with await in_thread(lambda: bundle.open("rb")) as packed:
        while part := await in_thread(lambda: packed.read(_PART_BYTES)):
            yield part


def _listening_at(address: str) -> str:
    """An address of this machine. A name is that of a Service which leads here: then all addresses (empty)."""
    try:
        return str(ip_address(address))
    except ValueError:
        return ""


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _from_outside(node: str) -> Reason:
    return EndedFromOutside(by=ExternalActor.KUBERNETES, node=node)


def _withdrawn_end(why: Reason) -> Exit:
    """A failure of its image or container is its own; one of the node is not."""
    return Exit(None if isinstance(why, NotPlaced) else 1, why, time.time())


def _write_end(run: Run, end: Exit) -> None:
    """Write how it ended, unless an end was written before. Raises OSError."""
    if run.folder.exit() is None:
        write_end(run.folder, end)
