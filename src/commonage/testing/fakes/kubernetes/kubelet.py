"""A kubelet: runs the Pods that are bound to its node, and reports their status. Used by `FakeCluster`.

Containers run once: whatever a Pod's restart policy says, none is started again. There are no probes.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.testing.fakes.kubernetes.channels import Client, Command, forward
from commonage.testing.fakes.kubernetes.containers import Container
from commonage.testing.fakes.kubernetes.store import (
    CONFIG_MAPS,
    EVENTS,
    PODS,
    SECRETS,
    VOLUME_CLAIMS,
    ApiError,
    Change,
    Key,
    Store,
    key_of,
    now,
)
from commonage.testing.fakes.kubernetes.surroundings import NotReady, Surroundings, expanded, mapped

_IMAGE = re.compile(r"[a-z0-9./_-]+(:[0-9]+/[a-z0-9./_-]+)?(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)
_LOOK_S = 0.03
_ALL = "0.0.0.0"
_ADDRESSES = count(1)


class PodRun:
    """One Pod on its node."""

    def __init__(self, kubelet: Kubelet, pod: Manifest) -> None:
        number = next(_ADDRESSES)
        self.pod = pod
        self.address = f"127.{1 + os.getpid() % 250}.{number // 250 % 250}.{number % 250 + 1}"
        self._kubelet = kubelet
        self._started_at = now()
        self._surroundings = Surroundings(kubelet.store, kubelet.root, self.address)
        self._stopping = asyncio.Event()
        self._kill_at: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()
        """Set when something that it waits for may have come."""
        self._mounted: dict[str, Mapping[str, Path]] = {}
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        self._init = [self._made(one, uid) for one in spec.get("initContainers") or ()]
        self._main = [self._made(one, uid) for one in spec["containers"]]
        self._is_over = False
        self._is_prepared = False

    @staticmethod
    def _made(container: Manifest, uid: str) -> Container:
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory", 0)
        return Container(container["name"], f"{uid}/{container['name']}/", milli(limit) // 1000)

    @property
    def containers(self) -> list[Container]:
        return [*self._init, *self._main]

    def command(self, name: str, words: Sequence[str], *, has_terminal: bool) -> Command | None:
        """A command in a container; None if that does not run."""
        container = next((one for one in self.containers if one.name == name and one.is_running), None)
        if container is None:
            return None
        inside = [mapped(word, self._mounted[name]) for word in words]
        return Command(inside, container.variables, container.folder, has_terminal=has_terminal)

    # --- its life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self.tell()
        spec = self.pod["spec"]
        for container, manifest in zip(self._init, spec.get("initContainers") or (), strict=True):
            if not await self._start(container, manifest):
                break
            self.tell()
            if manifest.get("restartPolicy") == "Always":  # a sidecar
                continue
            await container.ended()
            if container.exit_code:
                break
        else:
            for container, manifest in zip(self._main, spec["containers"], strict=True):
                if not await self._start(container, manifest):
                    break
            self.tell()
            await asyncio.gather(*(self._end_of(one) for one in self._main))
        for sidecar in self._init:
            sidecar.signal(signal.SIGKILL)
            await self._end_of(sidecar)
        self._is_over = True
        self.tell()

    async def _end_of(self, container: Container) -> None:
        if container.is_running:
            await container.ended()

    async def _start(self, container: Container, manifest: Manifest) -> bool:
        """False if its Pod is stopped first."""
        while not self._stopping.is_set():
            self.changed.clear()
            try:
                self._check_image(manifest)
                container.has_image = True
                mounts = self._mounts(container, manifest)
                if mounts is not None:
                    variables = self._surroundings.variables(self.pod, manifest)
                    await self._begin(container, manifest, variables, mounts)
                    self._signal_late(container)
                    return True
            except _NoImage as error:
                container.wait_for(error.reason, str(error))
            except NotReady as error:
                container.wait_for("CreateContainerConfigError", str(error))
            self.tell()
            await self.changed.wait()
        return False

    def _mounts(self, container: Container, manifest: Manifest) -> dict[str, Path] | None:
        """None while a volume cannot be mounted, of which only an event tells."""
        try:
            found = self._surroundings.mounts(self.pod, manifest)
        except NotReady as error:
            container.state = {"waiting": {"reason": "ContainerCreating"}}
            self._kubelet.warn(self.pod, "FailedMount", f"MountVolume.SetUp failed for volume: {error}")
            return None
        self._is_prepared = True
        return found

    async def _begin(
        self, container: Container, manifest: Manifest, variables: Mapping[str, str], mounts: Mapping[str, Path]
    ) -> None:
        words = [*(manifest.get("command") or ("/bin/sh",)), *(manifest.get("args") or ())]
        # A Pod's address is one of this machine's, so its programs must not listen on all of them.
        words = [mapped(expanded(word, variables), mounts).replace(_ALL, self.address) for word in words]
        folder = self._kubelet.root / "pods" / self.pod["metadata"]["uid"]
        folder.mkdir(parents=True, exist_ok=True)
        where = Path(mapped(manifest["workingDir"], mounts)) if "workingDir" in manifest else folder
        self._mounted[container.name] = mounts
        values = {name: self.address if value == _ALL else mapped(value, mounts) for name, value in variables.items()}
        await container.start(words, values, where)

    def volumes(self) -> list[Manifest]:
        """Its claims with the bytes in each."""
        namespace, found = self.pod["metadata"]["namespace"], []
        for one in self.pod["spec"].get("volumes") or ():
            if name := (one.get("persistentVolumeClaim") or {}).get("claimName"):
                folder = self._kubelet.root / "claims" / namespace / name
                used = sum(file.lstat().st_size for file in folder.rglob("*"))
                found.append({"name": one["name"], "pvcRef": {"namespace": namespace, "name": name}, "usedBytes": used})
        return found

    def _check_image(self, manifest: Manifest) -> None:
        image, policy = manifest["image"], manifest.get("imagePullPolicy", "IfNotPresent")
        if not _IMAGE.fullmatch(image):
            told = f'couldn\'t parse image name "{image}": invalid reference format'
            raise _NoImage("InvalidImageName", f'Failed to apply default image tag "{image}": {told}')
        if image in self._kubelet.images:
            return
        if policy == "Never":
            raise _NoImage("ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never')
        raise _NoImage("ErrImagePull", f'failed to pull and unpack image "{image}": not found')

    # --- its end --------------------------------------------------------------------------------------------------

    def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace period; a later call may shorten it."""
        loop = asyncio.get_running_loop()
        if not self._stopping.is_set():
            self._stopping.set()
            self.changed.set()
            for container in self.containers:
                container.signal(signal.SIGTERM)
        if self._kill_at is None or loop.time() + grace_s < self._kill_at.when():
            if self._kill_at is not None:
                self._kill_at.cancel()
            self._kill_at = loop.call_later(grace_s, self._kill)

    def _signal_late(self, container: Container) -> None:
        """Deliver the signals to a container that started while its Pod was being stopped."""
        if self._kill_at is None:
            return
        container.signal(signal.SIGTERM)
        if self._kill_at.when() <= asyncio.get_running_loop().time():
            container.signal(signal.SIGKILL)

    def _kill(self) -> None:
        for container in self.containers:
            container.signal(signal.SIGKILL)

    # --- its status -----------------------------------------------------------------------------------------------

    def tell(self) -> None:
        if not self._kubelet.is_lost:
            self._kubelet.tell(self.pod, self._status(), is_over=self._is_over)

    def _status(self) -> Manifest:
        ready = all(one.is_running for one in self._main)
        status: Manifest = {
            "phase": self._phase(),
            "hostIP": "127.0.0.1",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._started_at,
            "containerStatuses": [self._container_status(one) for one in self._main],
        }
        if self._init:
            status["initContainerStatuses"] = [self._container_status(one) for one in self._init]
        initialized = all(one.exit_code == 0 or one.is_running for one in self._init)
        values = {
            "PodReadyToStartContainers": self._is_prepared,
            "PodScheduled": True,
            "Initialized": initialized,
            "ContainersReady": ready,
            "Ready": ready,
        }
        status["conditions"] = [{"type": name, "status": str(value)} for name, value in values.items()]
        return status

    def _phase(self) -> str:
        if self._is_over:
            codes = [one.exit_code for one in (*self._main, *self._init) if one.exit_code is not None]
            whole = all(one.exit_code == 0 for one in self._main)
            return "Succeeded" if whole and not any(codes) else "Failed"
        return "Running" if any(one.is_running or one.exit_code is not None for one in self._main) else "Pending"

    def _container_status(self, container: Container) -> Manifest:
        specs = (*self.pod["spec"]["containers"], *(self.pod["spec"].get("initContainers") or ()))
        image = next(one["image"] for one in specs if one["name"] == container.name)
        started = "waiting" not in container.state
        return {
            "name": container.name,
            "image": image,
            "imageID": f"double:{image}" if container.has_image and started else "",
            "ready": container.is_running,
            "started": container.is_running,
            "restartCount": 0,
            "lastState": {},
            "state": container.state,
        }


class _NoImage(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Kubelet:
    """`images`: those that its node has, and all that it can pull. `root`: the folder of its volumes."""

    run_type: type[PodRun] = PodRun

    def __init__(self, store: Store, node: str, root: Path, images: Collection[str]) -> None:
        self.store, self.node, self.root, self.images = store, node, root, images
        self.is_lost = False
        self._runs: dict[str, PodRun] = {}  # by uid
        self._tasks: set[asyncio.Task[None]] = set()
        store.listen(self._changed)
        self._limiting = self._spawn(self._limit_memory())

    async def close(self) -> None:
        """End all Pods, and forget them."""
        self.is_lost = True
        for uid in list(self._runs):
            self._remove(uid)
        self._limiting.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set_lost(self, is_lost: bool) -> None:
        """A lost node keeps its Pods running, sees no changes, and reports nothing."""
        self.is_lost = is_lost
        if is_lost:
            return
        found = {pod["metadata"]["uid"]: pod for pod in self.store.all(PODS)}
        for uid in self._runs.keys() - found.keys():
            self._remove(uid)
        for pod in found.values():
            self._take(pod)
        for run in list(self._runs.values()):
            run.tell()

    def run_of(self, uid: str) -> PodRun | None:
        return self._runs.get(uid)

    # --- changes --------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if self.is_lost:
            return
        if change.kind in (SECRETS, CONFIG_MAPS, VOLUME_CLAIMS):
            for run in self._runs.values():
                run.changed.set()
        if change.kind is not PODS:
            return
        if change.after is not None:
            self._take(change.after)
        elif change.before is not None:
            self._remove(change.before["metadata"]["uid"])

    def _take(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        if pod["spec"].get("nodeName") != self.node:
            return
        run = self._runs.get(metadata["uid"])
        if run is None:
            if pod["status"]["phase"] in ("Succeeded", "Failed"):
                return
            run = self._runs[metadata["uid"]] = self.run_type(self, pod)
            self._spawn(run.run())
        if metadata.get("deletionTimestamp"):
            run.stop(metadata["deletionGracePeriodSeconds"])

    def _remove(self, uid: str) -> None:
        """Its object is gone: kill what still runs."""
        if (run := self._runs.pop(uid, None)) is not None:
            run.stop(0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def tell(self, pod: Manifest, status: Manifest, *, is_over: bool) -> None:
        """Write the status of a Pod that still exists; remove one that is being deleted and has ended."""
        key: Key = key_of(pod)
        found = self.store.find(PODS, key)
        if found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        changed = self.store.change(PODS, key, status={"qosClass": found["status"].get("qosClass"), **status})
        if is_over and changed is not None and changed["metadata"].get("deletionTimestamp"):
            self.store.remove(PODS, key)

    def warn(self, pod: Manifest, reason: str, message: str) -> None:
        """Write an event about the Pod, unless it is there already."""
        metadata = pod["metadata"]
        key: Key = (metadata["namespace"], f"{metadata['name']}.{reason.lower()}")
        if self.store.find(EVENTS, key) is None:
            about = {"kind": "Pod", "namespace": key[0], "name": metadata["name"], "uid": metadata["uid"]}
            told = {"involvedObject": about, "type": "Warning", "reason": reason, "message": message}
            self.store.create(
                EVENTS, {"metadata": {"namespace": key[0], "name": key[1]}, "lastTimestamp": now()} | told
            )

    async def _limit_memory(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for run in self._runs.values():
                for container in run.containers:
                    container.kill_if_over_limit()

    # --- what the API server asks ---------------------------------------------------------------------------------

    async def log(self, pod: Manifest, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        self._check_there()
        run = self._runs.get(pod["metadata"]["uid"])
        containers = {one.name: one for one in run.containers} if run else {}
        found, where = containers.get(name), f'container "{name}" in pod "{pod["metadata"]["name"]}"'
        if run is not None and found is None:
            raise ApiError(400, "BadRequest", f"container {name} is not valid for pod {pod['metadata']['name']}")
        if found is None or "waiting" in found.state:
            why = found.state["waiting"]["reason"] if found else "ContainerCreating"
            raise ApiError(400, "BadRequest", f"{where} is waiting to start: {why}")
        async for line in found.log.read(query):
            yield line

    def command(self, pod: Manifest, name: str, words: Sequence[str], *, has_terminal: bool) -> Command:
        self._check_there()
        run = self._runs.get(pod["metadata"]["uid"])
        found = run.command(name, words, has_terminal=has_terminal) if run else None
        if found is None:
            raise ApiError(400, "BadRequest", f'container not found ("{name}")')
        return found

    async def exec(self, command: Command, client: Client) -> None:
        """Run a command. It continues if the client leaves, until its container ends."""
        await command.start()
        self._spawn(command.run(client))
        await command.take(client)

    async def forward(self, pod: Manifest, port: int, client: Client) -> None:
        self._check_there()
        run = self._runs.get(pod["metadata"]["uid"])
        if run is not None:
            await forward(client, run.address, port)

    def summary(self) -> Manifest:
        self._check_there()
        pods = []
        for uid, run in self._runs.items():
            used = [one.use() for one in run.containers if one.is_running]
            if used:
                namespace, name = key_of(run.pod)
                told = {"podRef": {"name": name, "namespace": namespace, "uid": uid}, "containers": used}
                pods.append({**told, "volume": run.volumes()})
        return {"node": {"nodeName": self.node}, "pods": pods}

    def _check_there(self) -> None:
        if self.is_lost:
            told = f"dialing {self.node}: no route to host"
            raise ApiError(500, "InternalError", told)
