"""The LocalQueue of Kueue that Pods of a namespace go to, and the flavor of their node. Used by the launcher.

Kueue does not see that a Pod is pinned to a node: without the labels of the node's flavor it may admit the Pod for
another one, whose labels the node lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from commonage.engines.kubernetes.client import NAMESPACES, Client, Refused, Resource
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.kueue import flavor_names, flavor_of, queue_of, queued

GROUP = "/apis/kueue.x-k8s.io"
KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Queue:
    name: str
    flavors: Sequence[Manifest] = ()


class Queues:
    """Read once a minute. `name`: of the LocalQueue of all namespaces; empty: each has its own, or none."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._known: dict[str, tuple[float, _Queue]] = {}

    async def queued(self, pod: Manifest, node: Manifest | None) -> Manifest:
        """The Pod for its queue, and for the flavor of this node. Raises EngineFailure."""
        namespace, now = str(pod["metadata"]["namespace"]), asyncio.get_running_loop().time()
        at, queue = self._known.get(namespace, (-KEPT_S, _Queue("")))
        if now - at >= KEPT_S:
            queue = await self._read(namespace)
            self._known[namespace] = now, queue
        if not queue.name:
            return pod
        return queued(pod, queue.name, None if node is None else flavor_of(node, queue.flavors))

    async def _read(self, namespace: str) -> _Queue:
        group = await self._find(GROUP)
        api = "" if group is None else f"/apis/{group['preferredVersion']['groupVersion']}"
        local = await self._list(Resource(api, "localqueues"), namespace) if api else ()
        name = self._name
        if not name:
            found = await self._find(NAMESPACES.path(None, namespace))
            name = queue_of(found or {"metadata": {"name": namespace}}, local)
        mine = next((one for one in local if one["metadata"]["name"] == name), None)
        if mine is None:
            return _Queue(name)
        path = Resource(api, "clusterqueues", is_namespaced=False).path(None, mine["spec"]["clusterQueue"])
        cluster_queue = await self._find(path)
        names = flavor_names(cluster_queue) if cluster_queue is not None else set()
        flavors = await self._list(Resource(api, "resourceflavors", is_namespaced=False), None) if names else ()
        return _Queue(name, [one for one in flavors if one["metadata"]["name"] in names])

    async def _find(self, path: str) -> Manifest | None:
        """None without the right to read it, too."""
        try:
            return await self._client.find(path)
        except Refused as error:
            if error.http_status != 403:
                raise
            return None

    async def _list(self, resource: Resource, namespace: str | None) -> Sequence[Manifest]:
        try:
            return (await self._client.list_all(resource.path(namespace))).items
        except Refused as error:
            if error.http_status not in (403, 404):
                raise
            return ()
