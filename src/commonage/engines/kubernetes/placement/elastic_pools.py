"""Node pools that the autoscaler of a cluster grows: creates placeholders, and deletes those that have served.

Used by the engine, which reports changes of Pods. Nothing is stored outside the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.nodes import Machine
from commonage.domain.resources import NodePool
from commonage.engines.kubernetes.client import NODES, PODS, Client
from commonage.engines.kubernetes.manifest import Manifest, reading
from commonage.engines.kubernetes.placement import placeholders as pure
from commonage.engines.kubernetes.translate import PodContext, selector_of
from commonage.engines.settings import KubernetesSettings
from commonage.ports.clouds import Cloud

LATE_S = 300.0
"""A placeholder whose node pool is gone is deleted this long after its deadline."""


class ElasticPools:
    """The placeholders of this installation."""

    def __init__(self, client: Client, installation: str, settings: KubernetesSettings) -> None:
        self._client, self._settings = client, settings
        self._context = PodContext(installation, settings.namespace)
        self._lock = asyncio.Lock()
        self._known: set[str] = set()

    @property
    def has_any(self) -> bool:
        """True if there are placeholders, according to the reported changes of Pods."""
        return bool(self._known)

    def pod_changed(self, pod: Manifest, deleted: bool) -> None:
        """A Pod of this installation changed."""
        if not pure.pool_of(pod):
            return
        if deleted:
            self._known.discard(pod["metadata"]["name"])
        else:
            self._known.add(pod["metadata"]["name"])

    async def placeholders(self, pool: str = "") -> Sequence[Manifest]:
        selector = f"{selector_of(self._context.installation)},{pure.POOL}" + (f"={pool}" if pool else "")
        return (await self._client.list_all(PODS.path(self._context.namespace), selector)).items

    async def nodes(self) -> Sequence[Manifest]:
        return (await self._client.list_all(NODES.path(None))).items

    async def release(self, nodes: Sequence[Manifest]) -> None:
        """Delete the placeholders whose nodes are there. May be repeated after a failure."""
        async with self._lock:
            there = await self.placeholders()
            for pool in sorted({pure.pool_of(one) for one in there}):
                mine = [one for one in there if pure.pool_of(one) == pool]
                found = pure.release(mine, nodes, time.time())
                for pod, taken in found.renewed:  # first, so that no node serves two
                    await self._delete(pod)
                    await self._client.apply(PODS, pure.without(pod, taken))
                for pod in found.gone:
                    await self._delete(pod)

    async def add(self, name: str, pool: NodePool) -> Manifest:
        async with self._lock:
            nodes = pure.of_pool(await self.nodes(), dict(pool.policy.kind.labels))
            names = {one["metadata"]["name"] for one in nodes}
            place = pure.Place(self._context, names, time.time() + pool.policy.join_s + LATE_S)
            return await self._client.apply(PODS, pure.placeholder(name, pool, place, self._settings))

    async def delete(self, name: str) -> None:
        async with self._lock:
            await self._client.delete(self._path(name), grace_s=0)

    async def _delete(self, pod: Manifest) -> None:
        await self._client.delete(self._path(pod["metadata"]["name"]), grace_s=0, uid=pod["metadata"]["uid"])

    def _path(self, name: str) -> str:
        return PODS.path(self._context.namespace, name)


class PoolCloud(Cloud):
    """One node pool of a cluster. `pools` raises EngineFailure while the engine is not open."""

    provider = "kubernetes"
    is_autoscaled = True

    def __init__(self, pool: NodePool, pools: Callable[[], ElasticPools]) -> None:
        self._pool, self._pools = pool, pools

    async def price_per_h(self) -> float | None:
        """Unknown to the cluster."""
        return None

    async def machines(self) -> Sequence[Machine]:
        """The nodes with the labels of the pool, and the placeholders."""
        with _errors():
            pools = self._pools()
            nodes = await pools.nodes()
            await pools.release(nodes)
            return pure.machines(self._pool, await pools.placeholders(self._pool.policy.name), nodes)

    async def create(self, name: str, user_data: str) -> Machine:
        """Create a placeholder."""
        with _errors():
            pod = await self._pools().add(name, self._pool)
        return Machine(str(pod["metadata"]["uid"]), name, requested=True)

    async def destroy(self, machine: Machine) -> None:
        """Delete a placeholder. The autoscaler deletes nodes."""
        if machine.requested:
            with _errors():
                await self._pools().delete(machine.name)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        with reading("an object of the cluster's node pools"):
            yield
    except EngineFailure as error:
        raise Unavailable(str(error)) from error
