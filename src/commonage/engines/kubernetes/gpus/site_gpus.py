"""The GPUs of one cluster: the objects that tell of them, the mode in use, and what a Pod gets. Used by the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Share
from commonage.engines.kubernetes.client import Client, Refused, Resource
from commonage.engines.kubernetes.gpus.mode import (
    ClusterObjects,
    GpuMode,
    NodeObjects,
    annotate,
    annotation,
    hide_gpus,
    uuids_in,
)
from commonage.engines.kubernetes.gpus.modes import MODES_IN_USE, best_mode
from commonage.engines.kubernetes.gpus.plugin import Plugin
from commonage.engines.kubernetes.manifest import Manifest, owned
from commonage.engines.kubernetes.placement.capacity import node_of
from commonage.engines.kubernetes.placement.quantities import MAX_DEVICES

MODE = "commonage.dev/gpu-mode"
"""Annotation of a Pod: the mode by which it has its GPUs."""
_API = "/apis/resource.k8s.io/v1"
DEVICE_CLAIMS = Resource(_API, "resourceclaims")
SLICES = Resource(_API, "resourceslices", is_namespaced=False)
CLASSES = Resource(_API, "deviceclasses", is_namespaced=False)
WEBHOOKS = Resource("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", is_namespaced=False)


class SiteGpus:
    """`installation`: the value of the label of our Pods. Without a mode there are no GPUs."""

    def __init__(self, client: Client, installation: str, modes: Sequence[GpuMode] = MODES_IN_USE) -> None:
        self._client, self._installation, self._modes = client, installation, modes
        self._mode: GpuMode | None = None
        self._slices: dict[str, list[Manifest]] = {}  # by node
        self._claims: Sequence[Manifest] = ()
        self._pods: dict[str, Manifest] = {}  # of others, by uid
        self._on_node: dict[str, set[str]] = {}

    @property
    def mode(self) -> str:
        """The name of the mode in use; empty without one."""
        return self._mode.name if self._mode is not None else ""

    async def read(self, nodes: Sequence[Manifest]) -> None:
        """List what tells of GPUs, and choose the mode. Raises EngineFailure, and then changes nothing."""
        slices, classes = await self._all(SLICES), await self._all(CLASSES)
        webhooks, claims = await self._all(WEBHOOKS), await self._all(DEVICE_CLAIMS)
        objects = ClusterObjects(nodes, slices=slices, device_classes=classes, webhooks=webhooks)
        self._mode, self._claims = best_mode(objects, self._modes), claims or ()
        self._slices = {}
        for one in slices or ():
            self._slices.setdefault(str(one["spec"].get("nodeName", "")), []).append(one)

    async def _all(self, resource: Resource) -> Sequence[Manifest] | None:
        """None if the cluster has no such kind, or does not show it."""
        try:
            return (await self._client.list_all(resource.path(None))).items
        except Refused as error:
            if error.http_status in (403, 404):
                return None
            raise

    # --- devices ------------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Manifest) -> None:
        """A Pod of others as it is now."""
        uid, node = str(pod["metadata"]["uid"]), node_of(pod)
        before = self._pods.get(uid)
        if before is not None and node_of(before) != node:
            self.remove_pod(uid)
        if node:
            self._pods[uid] = pod
            self._on_node.setdefault(node, set()).add(uid)

    def remove_pod(self, uid: str) -> None:
        if (before := self._pods.pop(uid, None)) is not None:
            there = self._on_node[node_of(before)]
            there.discard(uid)
            if not there:
                del self._on_node[node_of(before)]

    def devices_of(self, node: Manifest, _foreign: Mapping[str, int]) -> tuple[Device, ...]:
        if self._mode is None:
            return ()
        name = str(node["metadata"]["name"])
        pods = [self._pods[uid] for uid in self._on_node.get(name, ())]
        objects = NodeObjects(node, self._slices.get(name, ()), pods, self._claims, self._installation)
        return self._mode.devices(objects)[:MAX_DEVICES]

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Manifest:
        """The Pod with its shares; without one, it sees no GPU. Raises EngineFailure."""
        real = [share for share in shares if not share.simulated]
        if not real:
            return hide_gpus(pod)
        if self._mode is None:
            raise EngineFailure(
                "the cluster gives no GPUs now: see `commonage doctor site` for the reason", retryable=True
            )
        made = self._mode.apply(pod, real).pod
        annotate(made, {MODE: self._mode.name})
        return made

    async def make_extras(self, pod: Manifest, shares: Sequence[Share]) -> None:
        """Make what the Pod needs besides, by the mode that it was made for. May be repeated. Raises EngineFailure."""
        if (mode := self._mode_of(pod)) is not None:
            for extra in mode.apply(pod, [share for share in shares if not share.simulated]).extras:
                await self._client.apply(DEVICE_CLAIMS, owned(extra, pod))

    async def granted(self, pod: Manifest, variable: Callable[[], Awaitable[str]]) -> tuple[str, ...]:
        """Uuids that a running Pod has; empty if its mode does not tell. `variable`: the visible GPUs of its container.

        Raises EngineFailure.
        """
        mode = self._mode_of(pod)
        if mode is None:
            return ()
        if mode.name == Plugin.name:
            return mode.granted(pod) or uuids_in(await variable())
        metadata = pod["metadata"]
        claim = None
        if pod["spec"].get("resourceClaims"):
            claim = await self._client.find(DEVICE_CLAIMS.path(metadata["namespace"], metadata["name"]))
        return mode.granted(pod, [claim] if claim is not None else ())

    def _mode_of(self, pod: Manifest) -> GpuMode | None:
        """The mode that it was made for; None without GPUs."""
        name = annotation(pod, MODE)
        if not name:
            return None
        found = next((mode for mode in self._modes if mode.name == name), None)
        if found is None:
            raise EngineFailure(f"the Pod {pod['metadata']['name']} has GPUs of the mode {name!r}, which is not known")
        return found
