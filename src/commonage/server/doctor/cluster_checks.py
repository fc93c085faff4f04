"""The checks of `commonage doctor site` on a Kubernetes cluster: its GPU modes, our rights in it, its feature gates.

Nothing is changed: objects are listed, and the API server is asked for our own rights.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.gpus.fractioning import CONFIGS
from commonage.engines.kubernetes.gpus.mode import ClusterObjects, Detection
from commonage.engines.kubernetes.gpus.modes import detect_all
from commonage.engines.kubernetes.manifest import Manifest

_TIMEOUT_S = 15.0
_PAGE = "500"
_RESOURCE_API = "/apis/resource.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NODES, SLICES, CLASSES = "/api/v1/nodes", f"{_RESOURCE_API}/resourceslices", f"{_RESOURCE_API}/deviceclasses"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

_DEVICE_GATES = (
    "DynamicResourceAllocation",
    "DRAConsumableCapacity",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRAExtendedResource",
)
_GATE = re.compile(r'kubernetes_feature_enabled\{name="([A-Za-z0-9]+)",stage="([A-Z]*)"\} ([01])', re.ASCII)


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource that a mode (empty: every mode) needs."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    mode: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f'/{self.subresource}' if self.subresource else ''}"


RIGHTS: tuple[Right, ...] = (
    Right("list", "", "nodes"),
    *(Right(verb, "", "pods") for verb in ("list", "create", "patch", "delete")),
    *(Right("list", "resource.k8s.io", kind, mode="dra") for kind in ("resourceslices", "deviceclasses")),
    *(Right(verb, "resource.k8s.io", "resourceclaims", mode="dra") for verb in ("list", "create", "patch")),
    Right("list", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", mode="hami"),
    Right("list", "node.k8s.io", "runtimeclasses", mode="env"),
    *(Right("get", "", "pods", "log", mode=mode) for mode in ("fractioning", "env")),
    Right("create", "", "pods", "exec", mode="plugin"),
)


@dataclass(frozen=True, slots=True)
class FeatureGate:
    name: str
    stage: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """`gates` is None if the API server's metrics may not be read. `missing` are the verbs that we may not use."""

    version: str
    nodes: int
    modes: tuple[Detection, ...]
    missing: tuple[Right, ...]
    gates: tuple[FeatureGate, ...] | None


class ClusterReader:
    """Asks an API server. Raises EngineFailure if it does not answer."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def list_all(self, path: str) -> list[Manifest] | None:
        """All objects; None if the API has no such kind, or we may not list it."""
        items: list[Manifest] = []
        more = ""
        while True:
            answer = await self.ask("GET", path, params={"limit": _PAGE} | ({"continue": more} if more else {}))
            if answer.status_code in (403, 404):
                return None
            page = _checked(answer, path)
            items += page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return items

    async def version(self) -> str:
        return str(_checked(await self.ask("GET", "/version"), "/version")["gitVersion"])

    async def may(self, right: Right, namespace: str) -> bool:
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        attributes = {"verb": right.verb, "group": right.group, "resource": right.resource, "namespace": namespace}
        if right.subresource:
            attributes["subresource"] = right.subresource
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(_checked(await self.ask("POST", path, json=review), path)["status"]["allowed"])

    async def gates(self) -> tuple[FeatureGate, ...] | None:
        answer = await self.ask("GET", "/metrics")
        return gates_in(answer.text) if answer.status_code == 200 else None

    async def ask(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            return await self._http.request(method, path, **request)
        except (httpx2.HTTPError, OSError) as error:
            words = str(error) or type(error).__name__
            raise EngineFailure(f"the cluster's API server does not answer: {words}") from error


@asynccontextmanager
async def open_cluster(kubeconfig: Path | None, context: str | None) -> AsyncIterator[ClusterReader]:
    """`kubeconfig` None: the Pod's service account, or KUBECONFIG, or ~/.kube/config. Raises EngineFailure."""
    from lightkube.config.client_adapter import AsyncClient, ConnectionParams  # noqa: PLC0415 - Kubernetes sites only
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415 - Kubernetes sites only
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415 - Kubernetes sites only

    try:
        found = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig.expanduser())
        config = found.get(context)
        if config is None:
            raise EngineFailure("the kubeconfig has no current context: name one with --context")
        http = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S), trust_env=False))
    except (ConfigError, OSError, KeyError, ValueError) as error:
        raise EngineFailure(f"there is no usable kubeconfig: {error}; name one with --kubeconfig") from error
    async with http:
        yield ClusterReader(http)


def examine_cluster(kubeconfig: Path | None, context: str | None, namespace: str) -> ClusterReport:
    """`namespace` is one in which Pods of workloads run. Raises EngineFailure."""

    async def examine() -> ClusterReport:
        async with open_cluster(kubeconfig, context) as cluster:
            return await report_of(cluster, namespace)

    return asyncio.run(examine())


async def report_of(cluster: ClusterReader, namespace: str) -> ClusterReport:
    version = await cluster.version()
    objects = await _objects(cluster)
    modes = detect_all(objects)
    present = {"", *(mode.mode for mode in modes if mode.is_present)}
    # A right to list is asked for in any case: without it a mode is not seen.
    wanted = [right for right in RIGHTS if right.mode in present or right.verb == "list"]
    missing = tuple([right for right in wanted if not await cluster.may(right, namespace)])
    return ClusterReport(version, len(objects.nodes), modes, missing, await cluster.gates())


async def _objects(cluster: ClusterReader) -> ClusterObjects:
    return ClusterObjects(
        nodes=await cluster.list_all(NODES) or (),
        slices=await cluster.list_all(SLICES),
        device_classes=await cluster.list_all(CLASSES),
        runtime_classes=await cluster.list_all(RUNTIMES),
        webhooks=await cluster.list_all(WEBHOOKS),
        fractioning=await _fractioning(cluster),
    )


async def _fractioning(cluster: ClusterReader) -> Sequence[Manifest] | None:
    for definition in await cluster.list_all(_CRDS) or ():
        spec = definition["spec"]
        if spec["names"]["plural"] == CONFIGS:
            served = [version["name"] for version in spec["versions"] if version["served"]]
            return await cluster.list_all(f"/apis/{spec['group']}/{served[0]}/{CONFIGS}") if served else None
    return None


def gates_in(metrics: str) -> tuple[FeatureGate, ...]:
    """Feature gates of devices, from the API server's metrics."""
    found: Mapping[str, FeatureGate] = {
        name: FeatureGate(name, stage.lower() or "stable", enabled == "1")
        for name, stage, enabled in _GATE.findall(metrics)
    }
    return tuple(found[name] for name in _DEVICE_GATES if name in found)


def _checked(answer: httpx2.Response, path: str) -> Manifest:
    if answer.is_success:
        found: Manifest = answer.json()
        return found
    raise EngineFailure(f"the cluster's API server refuses {path}: HTTP {answer.status_code}: {answer.text[:300]}")
