"""The engine's cache of Pods under random changes and faults of the line, against a fresh list."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from benchmarks.kubernetes.cluster import Cluster, Source, pod, proxied
from benchmarks.kubernetes.findings import Findings
from benchmarks.report import Figure, progress
from commonage.domain.iterations import Iterations
from commonage.engines.kubernetes.cache import Cache, Event, key_of
from commonage.engines.kubernetes.client import PODS, Client, Refused
from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fault_proxy import FaultProxy

_NAMES = 60
_COMPARE_EVERY_S = 60.0
_SAME_WITHIN_S = 120.0
_SPEC: Manifest = {
    "schedulingGates": [{"name": "commonage.dev/bench"}],  # never runs
    "terminationGracePeriodSeconds": 0,
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
}
_CONTAINER: Manifest = {
    "name": "main",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


class _Forgetful(Source):
    """Asks for a version that the API server has forgotten, once, when `expires` is set: it answers with 410."""

    expires = False

    def watch(self, version: str) -> AsyncGenerator[Event]:
        if self.expires:
            version, self.expires = "1", False
        return super().watch(version)


class Soak:
    def __init__(self, cluster: Cluster, seed: int, findings: Findings) -> None:
        self._cluster, self._chance = cluster, random.Random(f"soak {seed}")
        self.done: Counter[str] = Counter()
        self.findings = findings
        self.comparisons = 0
        self._told: dict[str, str] = {}
        """From the changes that the cache tells of, as the engine's capacity is: resourceVersion by uid."""

    async def run(self, seconds: float) -> None:
        async with proxied(self._cluster) as (proxy, kubeconfig):
            client = Client(kubeconfig)
            await asyncio.to_thread(client.open)
            source = _Forgetful(client, PODS.path(self._cluster.name))
            cache = Cache(source, self._tell, "Pods of the benchmark")
            await cache.sync()
            keeping = asyncio.create_task(cache.keep(Iterations("bench", time.time)))
            try:
                until = time.monotonic() + seconds
                while (left := until - time.monotonic()) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(left, _COMPARE_EVERY_S)), asyncio.TaskGroup() as group:
                            group.create_task(self._change())
                            group.create_task(self._spoil(proxy, source))
                    proxy.faults.silent = proxy.faults.refuses = False
                    proxy.cut()
                    await self._compare(cache)
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await client.close()
        await self._cluster.clear()

    def _tell(self, changed: Manifest, is_deleted: bool) -> None:
        metadata = changed["metadata"]
        if is_deleted:
            self._told.pop(metadata["uid"], None)
        else:
            self._told[metadata["uid"]] = metadata["resourceVersion"]

    async def _change(self) -> None:
        """Pods of few names are created, changed and deleted, directly at the API server."""
        client, namespace, chance = self._cluster.client, self._cluster.name, self._chance
        spec = {**_SPEC, "containers": [{**_CONTAINER, "image": self._cluster.image}]}
        while True:
            name = f"soak-{chance.randrange(_NAMES)}"
            what = chance.choice(("create", "create", "change", "change", "change", "delete"))
            try:
                if what == "create":
                    await self._cluster.create(PODS, pod(name, spec))
                elif what == "change":
                    note = {"metadata": {"annotations": {"note": str(chance.random())}}}
                    await client.merge(PODS.path(namespace, name), note)
                elif not await client.delete(PODS.path(namespace, name), grace_s=0):
                    continue
            except Refused as error:
                if error.http_status not in (404, 409):
                    raise
            else:
                self.done[what] += 1
            await asyncio.sleep(chance.expovariate(20.0))

    async def _spoil(self, proxy: FaultProxy, source: _Forgetful) -> None:
        chance, faults = self._chance, proxy.faults
        while True:
            await asyncio.sleep(chance.uniform(0.5, 6.0))
            what = chance.choice(("cut", "silent", "refused", "corrupt", "expired"))
            self.done[what] += 1
            if what == "silent":  # data that is sent meanwhile is lost
                faults.silent = True
                await asyncio.sleep(chance.uniform(0.2, 3.0))
                faults.silent = False
            elif what == "refused":
                faults.refuses = True
                proxy.cut()
                await asyncio.sleep(chance.uniform(0.2, 3.0))
                faults.refuses = False
            elif what == "corrupt":
                faults.corrupt_in = chance.randrange(1, 2000)
                continue
            elif what == "expired":
                source.expires = True
            proxy.cut()

    async def _compare(self, cache: Cache) -> None:
        """Nothing changes now: the cache must become equal to a fresh list."""
        listed = (await self._cluster.client.list_all(PODS.path(self._cluster.name))).items
        wanted = _contents(listed)
        versions = {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in listed}
        give_up = time.monotonic() + _SAME_WITHIN_S
        while (held := _contents(cache.objects)) != wanted or self._told != versions:
            if time.monotonic() > give_up:
                differ = sorted(key for key in held.keys() | wanted.keys() if held.get(key) != wanted.get(key))
                after = f"after {sum(self.done.values())} changes and faults"
                self.findings.different.append(f"{after}, the cache differs in {differ or 'what it told'}")
                return
            await asyncio.sleep(0.2)
        self.comparisons += 1
        progress(f"the cache is equal to a list of {len(wanted)} after {sum(self.done.values())} changes and faults")


def _contents(objects: Sequence[Manifest]) -> dict[str, Manifest]:
    """By name, without what a list says only once: the kind."""
    parts = ("metadata", "spec", "status")
    return {key_of(one): {part: one.get(part) for part in parts} for one in objects}


async def soak(cluster: Cluster, seconds: float, seed: int, findings: Findings) -> list[Figure]:
    progress(f"changes and faults for {seconds:.0f} s")
    one = Soak(cluster, seed, findings)
    await one.run(seconds)
    changes = sum(one.done[what] for what in ("create", "change", "delete"))
    how = f"{one.comparisons} comparisons with a fresh list, objects and reported changes; must be 0"
    return [
        Figure("changes of Pods", changes, "", f"over {seconds:.0f} s, seed {seed}"),
        Figure("faults of the line", sum(one.done.values()) - changes, "", "cut, silent, refused, corrupted, or 410"),
        Figure("differences of the cache", len(findings.different), "", how),
    ]
