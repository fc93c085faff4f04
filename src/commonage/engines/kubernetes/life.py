"""The life of each attempt: launches it, follows the status of its Pod, and ends it. Used by the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import CommonageError, EngineFailure, start_failure
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
from commonage.domain.statuses import Phase, StartRequest, Status
from commonage.engines.containers.attempt_backend import Unreachable
from commonage.engines.containers.lifecycle import PAUSES_S
from commonage.engines.containers.program import PORT
from commonage.engines.containers.status_reader import write_end
from commonage.engines.kubernetes.cache import Cache
from commonage.engines.kubernetes.channels.archives import send_files
from commonage.engines.kubernetes.channels.connection import Container
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.engines.kubernetes.channels.ports import PodRelays
from commonage.engines.kubernetes.events import last_warning
from commonage.engines.kubernetes.gpus.mode import GRANTED, VISIBLE, annotation
from commonage.engines.kubernetes.launcher import Launcher, NotPlacedError
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.refusals import NodeBackoffs
from commonage.engines.kubernetes.run import Run
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
from commonage.engines.kubernetes.translate import CONTAINER, FILES, is_gated, namespace_of, pod_name
from commonage.engines.rundir.run import RunTable
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.tasks import InThread, Tasks, retry_start
from commonage.engines.rundir.unpacking import check_bundle_exists
from commonage.engines.settings import KubernetesSettings
from commonage.ports.execs import OUT

RETRY_S = 2.0
_TERMINATED, _KILLED = 143, 137
_PART_BYTES = 64 * 1024
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodStreams:
    """Commands in Pods, and the addresses here of their ports (None: they are reached at their own)."""

    execs: PodExecs
    relays: PodRelays | None


class AttemptLife:
    """`pods`, `nodes`: those of the cluster. `backoffs`: the nodes that refuse Pods."""

    def __init__(
        self, launcher: Launcher, pods: Cache, nodes: Cache, streams: PodStreams, table: RunTable[Run], tasks: Tasks
    ) -> None:
        self._launcher, self._client, self._gpus = launcher, launcher.client, launcher.gpus
        self._settings, self._pods, self._nodes = launcher.settings, pods, nodes
        self._execs, self._pod_relays = streams.execs, streams.relays
        self._table, self._tasks, self._spawn, self._in_thread = table, tasks, tasks.spawn, tasks.in_thread
        self.backoffs = NodeBackoffs()

    # --- starting -----------------------------------------------------------------------------------------------------

    def _launch(self, run: Run) -> None:
        if not run.is_launching:
            run.launching = self._spawn(self._launch_in_background(run))

    async def _launch_in_background(self, run: Run) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            self._table.tell(run, starting(run.request, reason, progress))

        async def launch() -> None:
            async with run.lock:
                if run.ending is None and run.status.phase is Phase.STARTING:
                    run.last_pod = await self._launcher.launch(run)

        try:
            await retry_start(launch, PAUSES_S, on_progress, not_for=(Unreachable, NotPlacedError))
        except Unreachable as error:
            on_progress(error.waiting, None)
            self.settle_soon_again(run)
            return
        except OSError as error:
            _log.warning("cannot start %s, will try again: %s", run.id, error)
            self.settle_soon_again(run)
            return
        except EngineFailure as error:
            _log.warning("cannot start %s: %s", run.id, error)
            await self._give_up(run, Exit(None if error.is_retryable else 1, start_failure(error), time.time()))
        await self.settle(run)

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
            await self._tasks.until_disk_works(run.folder.forbid_start)
            await self._tasks.until_disk_works(partial(_write_end, run, end))
            with suppress(EngineFailure):  # removed with the attempt, at the latest
                await self._launcher.delete(run, 0)

    # --- what its Pod says --------------------------------------------------------------------------------------------

    async def settle(self, run: Run) -> None:
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
                self.settle_soon_again(run)
            except Exception as error:  # any exception: a Pod that cannot be read affects its attempt only
                if repr(error) != run.last_error:
                    _log.exception("cannot read the Pod of %s, will try again", run.id)
                run.last_error = repr(error)
                self.settle_soon_again(run)

    def settle_soon_again(self, run: Run) -> None:
        if run.again is None:
            run.again = self._spawn(self._settle_after_pause(run))

    async def _settle_after_pause(self, run: Run) -> None:
        await asyncio.sleep(RETRY_S)
        run.again = None
        await self.settle(run)

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

    # --- running ------------------------------------------------------------------------------------------------------

    def _running(self, run: Run, pod: Manifest, found: Running) -> None:
        request = run.request
        if request.wants_port and not found.address:
            self.settle_soon_again(run)
            return
        url = self._url(run, found.address or "") if request.wants_port else None
        now = time.time()
        self.backoffs.started(request.allocation.node)
        started = run.status.started_at or max(found.started_at or now, request.allocation.at)
        status = Status(run.id, Phase.RUNNING, now, request.allocation.node, url=url, started_at=started)
        before = run.status
        if (before.phase, before.url) != (status.phase, status.url):
            self._table.tell(run, status)
            if request.allocation.shares and not annotation(pod, GRANTED):
                self._spawn(self._note_gpus(run, pod))
        if run.following is None or run.following.done():
            run.following = self._spawn(run.copy.follow())

    def _url(self, run: Run, pod_ip: str) -> str | None:
        """Where its port is reached; None if no address of this machine is free for it."""
        port = run.request.port or PORT
        place: tuple[str, int] | None = (_host(pod_ip), port)
        if self._pod_relays is not None:
            place = self._pod_relays.address(run.id, container_of(run.request, self._settings), port)
        return None if place is None else f"http://{place[0]}:{place[1]}"

    async def _note_gpus(self, run: Run, pod: Manifest) -> None:
        """Write the uuids of its GPUs to its Pod, if the GPU mode reports them."""

        async def variable() -> str:
            command = ("/bin/sh", "-c", f'echo "${VISIBLE}"')
            stream = await self._execs.begin(container_of(run.request, self._settings), run.id, command, None)
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

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _waiting(self, run: Run, pod: Manifest, found: Waiting) -> None:
        if found.refusal is not None:
            if self._is_overdue(run, found.refusal, found) and await self._withdraw(run, pod, found.refusal, found):
                return
            self.settle_soon_again(run)
        else:
            run.refused_as = None
        reason = found.reason
        if waits_for_files(pod) and run.withdrawn is None:
            reason = UnpackingFiles()
            if run.sending is None:
                run.sending = self._spawn(self._send_files(run))
        if run.status.reason != reason:
            self._table.tell(run, starting(run.request, reason))

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
            await send_files(
                self._execs, container_of(request, self._settings, FILES), _parts(bundle, self._in_thread), folder
            )
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
        self.settle_soon_again(run)

    async def _withdraw_bound(self, run: Run, why: Reason) -> None:
        """Delete the Pod of an attempt whose container cannot be made. It has ended once the Pod is gone."""
        if run.withdrawn is None:
            await self._launcher.delete(run, 1)
            run.withdrawn = why
        self.settle_soon_again(run)

    # --- its end ------------------------------------------------------------------------------------------------------

    async def _end_with(self, run: Run, end: Exit, started_at: float | None) -> None:
        """Copy the rest of its output, store its end, and report it."""
        if run.uid and started_at is not None:
            await run.copy.finish(run.following)
        elif run.following is not None:
            run.following.cancel()
        earliest = run.request.allocation.at
        started = None if started_at is None else max(started_at, earliest)
        end = replace(end, at=min(max(end.at, started or earliest), time.time()))
        await self._in_thread(partial(_write_end, run, end))
        self.backoffs.refused(run.request.allocation.node, end.reason, time.time())
        self._tell_end(run, end, run.status.started_at or started)

    def _tell_end(self, run: Run, end: Exit, started_at: float | None) -> None:
        if self._pod_relays is not None:
            self._pod_relays.end(run.id)
        status = Status(
            run.id, Phase.ENDED, end.at, run.request.allocation.node, end.reason,
            exit_code=end.code, oom=end.oom, started_at=started_at,
        )  # fmt: skip
        self._table.tell(run, status)


def starting(request: StartRequest, reason: Reason | None = None, progress: float | None = None) -> Status:
    node = request.allocation.node
    return Status(request.attempt_id, Phase.STARTING, time.time(), node, reason or Starting(node=node), progress)


def container_of(request: StartRequest, settings: KubernetesSettings, name: str = CONTAINER) -> Container:
    return Container(namespace_of(request.tenant, settings), pod_name(request.attempt_id), name)


async def _parts(bundle: Path, in_thread: InThread) -> AsyncGenerator[bytes]:
    """Raises OSError."""
    with await in_thread(lambda: bundle.open("rb")) as packed:
        while part := await in_thread(lambda: packed.read(_PART_BYTES)):
            yield part


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _from_outside(node: str) -> Reason:
    return EndedFromOutside(by=ExternalActor.KUBERNETES, node=node)


def _withdrawn_end(why: Reason) -> Exit:
    """A failure of its image or container is its own; one of the node is not."""
    return Exit(None if isinstance(why, NotPlaced) else 1, why, time.time())


def _write_end(run: Run, end: Exit) -> None:
    """Store how it ended, unless an end was stored before. Raises OSError."""
    if run.folder.exit() is None:
        write_end(run.folder, end)
