"""A namespace of the benchmark's own, the server that uses it, and its Pods as the API server shows them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from benchmarks.report import BenchmarkError
from benchmarks.server import Installation, Served
from commonage.domain.iterations import Iterations
from commonage.engines.kubernetes.cache import Cache, Event, Listed
from commonage.engines.kubernetes.client import NAMESPACES, PODS, Client, Resource
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.translate import PREFIX
from commonage.testing.fault_proxy import FaultProxy

JOBS = Resource("/apis/batch/v1", "jobs")
SERVICE_ACCOUNTS = Resource("/api/v1", "serviceaccounts")
PRIORITY_CLASSES = Resource("/apis/scheduling.k8s.io/v1", "priorityclasses", is_namespaced=False)
POLL_S = 0.1
_NAME = "commonage-bench"
_WORKLOAD = f"{PREFIX}/workload"
_ENDS_WITHIN_S, _REMOVED_WITHIN_S = 120.0, 300.0


@dataclass(slots=True)
class Seen:
    """A Pod, as the API server told of it. `started_at`: when its container was first seen to run or to have run, by
    time.perf_counter.
    """

    workload: str
    started_at: float | None = None
    has_ended: bool = False
    is_gone: bool = False


class Source:
    """All objects of a path, for a cache."""

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path

    async def list_all(self) -> Listed:
        return await self._client.list_all(self._path)

    def watch(self, version: str) -> AsyncGenerator[Event]:
        return self._client.watch(self._path, version)


class Pods:
    """Every Pod that was in the namespace since `following` began, by uid, and the most that were live at once."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.seen: dict[str, Seen] = {}
        self.most_live = 0
        self._live: set[str] = set()
        self._changed = asyncio.Event()
        self._cache = Cache(Source(client, PODS.path(namespace)), self.note, "Pods of the benchmark")

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Pods]:
        await self._cache.sync()
        task = asyncio.create_task(self._cache.keep(Iterations("bench", time.time)))
        try:
            yield self
        finally:
            task.cancel()

    def note(self, pod: Manifest, is_deleted: bool) -> None:
        uid, status = pod["metadata"]["uid"], pod.get("status") or {}
        annotations = pod["metadata"].get("annotations") or {}
        one = self.seen.setdefault(uid, Seen(annotations.get(_WORKLOAD, "")))
        states = [state for given in status.get("containerStatuses") or () for state in given.get("state") or ()]
        if one.started_at is None and ("running" in states or "terminated" in states):
            one.started_at = time.perf_counter()
        one.has_ended = one.has_ended or status.get("phase") in ("Succeeded", "Failed")
        one.is_gone = one.is_gone or is_deleted
        if one.has_ended or one.is_gone:
            self._live.discard(uid)
        else:
            self._live.add(uid)
            self.most_live = max(self.most_live, len(self._live))
        self._changed.set()

    async def until_ended(self, uid: str) -> float:
        """When it started."""
        await self.until(lambda: uid in self.seen and self.seen[uid].has_ended, "a Pod ends", _ENDS_WITHIN_S)
        return self.seen[uid].started_at or time.perf_counter()

    async def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait for a condition that only Pods change. Raises BenchmarkError."""
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise BenchmarkError(f"not within {within_s:.0f} s: {what}") from None

    def count(self, which: Callable[[Seen], bool]) -> int:
        return sum(which(one) for one in self.seen.values())


@dataclass(frozen=True)
class Cluster:
    """The cluster, with a namespace and a PriorityClass of this name for the benchmark."""

    client: Client
    kubeconfig: Path
    image: str
    name: str
    folder: Path

    @asynccontextmanager
    async def server(self, *, kubeconfig: Path | None = None, tolerations: str = "") -> AsyncIterator[Served]:
        """A server with our engine on this cluster. Its workloads end with it."""
        variables = {
            "COMMONAGE_KUBERNETES_KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "COMMONAGE_KUBERNETES_NAMESPACE": self.name,
            "COMMONAGE_KUBERNETES_PRIORITY_CLASS": self.name,
            "COMMONAGE_KUBERNETES_TOLERATIONS": tolerations,
            "COMMONAGE_DOCKER_IMAGE": self.image,
            "COMMONAGE_POLICY": "spread",  # as the cluster's own scheduler does
        }
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        installation = Installation(folder, "--engine", "kubernetes", "--gpus", "none", variables=variables)
        try:
            await asyncio.to_thread(installation.start)
            yield installation.served()
        finally:
            await asyncio.to_thread(installation.stop)

    def pods(self) -> Pods:
        return Pods(self.client, self.name)

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest:
        """As `kubectl create` does, without the start of its process."""
        return await self.client.create(resource.path(self.name), manifest)

    async def template(self) -> Manifest:
        """The Pod that our engine made last, without our gate and our choice of the node."""
        made = max((await self.client.list_all(PODS.path(self.name))).items, key=_created_at)
        ours = ("schedulingGates", "affinity", "nodeName", "priority")
        return {key: value for key, value in made["spec"].items() if key not in ours}

    async def clear(self) -> None:
        """Delete the benchmark's own Jobs and Pods, and wait until all Pods are gone."""
        for resource in (JOBS, PODS):
            for one in (await self.client.list_all(resource.path(self.name))).items:
                await self.client.delete(resource.path(self.name, one["metadata"]["name"]), grace_s=0)

        async def is_empty() -> bool:
            return not (await self.client.list_all(PODS.path(self.name))).items

        await until(is_empty, "all Pods are gone", _REMOVED_WITHIN_S)


def _created_at(manifest: Manifest) -> str:
    return str(manifest["metadata"]["creationTimestamp"])


def pod(name: str, spec: Manifest, **metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


async def until(condition: Callable[[], Awaitable[bool]], what: str, within_s: float) -> None:
    give_up = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not within {within_s:.0f} s: {what}")
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def cluster(image: str) -> AsyncIterator[Cluster]:
    """The cluster that KUBECONFIG names. What the benchmark made there is removed at the end."""
    kubeconfig = Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser()
    client = Client(kubeconfig)
    await asyncio.to_thread(client.open)
    name = f"{_NAME}-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    try:
        with tempfile.TemporaryDirectory(prefix="commonage-bench-", ignore_cleanup_errors=True) as folder:

            async def takes_pods() -> bool:
                return await client.find(SERVICE_ACCOUNTS.path(name, "default")) is not None

            try:
                await client.apply(NAMESPACES, namespace)
                await client.apply(PRIORITY_CLASSES, {**priority, "value": 0, "preemptionPolicy": "Never"})
                await until(takes_pods, "the namespace has its service account", _ENDS_WITHIN_S)
                yield Cluster(client, kubeconfig, image, name, Path(folder))
            finally:
                for resource in (NAMESPACES, PRIORITY_CLASSES):
                    await client.delete(resource.path(None, name))
    finally:
        await client.close()


@asynccontextmanager
async def proxied(cluster: Cluster) -> AsyncIterator[tuple[FaultProxy, Path]]:
    """A proxy before the API server, and a kubeconfig that leads to it. The certificate is of another address, so it is
    not checked.
    """
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    named = {one["name"]: one["cluster"] for one in config["clusters"]}
    context = next(one["context"] for one in config["contexts"] if one["name"] == config["current-context"])
    own = named[context["cluster"]]
    server = urlsplit(own["server"])
    proxy = FaultProxy(server.port or 443, target_host=server.hostname or "")
    await proxy.open()
    for name in ("certificate-authority", "certificate-authority-data"):
        own.pop(name, None)
    own |= {"server": f"https://127.0.0.1:{proxy.port}", "insecure-skip-tls-verify": True}
    path = cluster.folder / f"kubeconfig-{proxy.port}"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    try:
        yield proxy, path
    finally:
        await proxy.close()
