"""The whole double: API server, scheduler and kubelets, and failures on demand. Used by tests.

async with FakeCluster(folder, nodes=["node-1"], images=["shell:1"]) as cluster:
    settings = KubernetesSettings(kubeconfig=cluster.kubeconfig)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes.api import Admission, Api
from commonage.testing.fakes.kubernetes.kubelet import Kubelet
from commonage.testing.fakes.kubernetes.scheduler import Scheduler
from commonage.testing.fakes.kubernetes.server import ApiServer
from commonage.testing.fakes.kubernetes.store import NAMESPACES, NODES, PODS, ApiError, Store, now

_UNREACHABLE = "node.kubernetes.io/unreachable"


class FakeCluster:
    """`folder` takes the kubeconfig and all volumes. `images`: those that the nodes have."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[str],
        images: Collection[str],
        namespace: str = "commonage",
        kubelet: type[Kubelet] = Kubelet,
    ) -> None:
        self.folder = folder
        self._names, self._images, self._namespace = nodes, images, namespace
        self._kubelet = kubelet
        self._kubelets: dict[str, Kubelet] = {}
        self.store = Store()
        self._api = Api(self.store)
        self.server = ApiServer(self.store, self._api, self)
        self.kubeconfig = folder / "kubeconfig"

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        Scheduler(self.store)
        self.store.create(NAMESPACES, {"metadata": {"name": self._namespace}, "status": {"phase": "Active"}})
        for name in self._names:
            self._kubelets[name] = self._kubelet(self.store, name, self.folder / name, self._images)
            self.store.create(NODES, _node(name))
        await self.server.open()
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self.server.url, self._namespace)), encoding="utf-8")
        return self

    async def __aexit__(self, *_: object) -> None:
        for kubelet in self._kubelets.values():
            await kubelet.close()
        await self.server.close()

    # --- for the API server ---------------------------------------------------------------------------------------

    def kubelet_of(self, pod: Manifest) -> Kubelet:
        kubelet = self._kubelets.get(pod["spec"].get("nodeName", ""))
        if kubelet is None:
            raise ApiError(400, "BadRequest", f"pod {pod['metadata']['name']} does not have a host assigned")
        return kubelet

    def summary(self, node: str) -> Manifest:
        if node not in self._kubelets:
            raise ApiError(503, "ServiceUnavailable", f"no kubelet on {node}")
        return self._kubelets[node].summary()

    # --- tokens -----------------------------------------------------------------------------------------------------

    def token_of(self, account: str, node: str, audience: str) -> str:
        """A token of a Pod with the service account NAMESPACE/NAME on this node."""
        namespace, _, name = account.partition("/")
        claims = {"node-name": [node], "node-uid": [self.store.get(NODES, ("", node))["metadata"]["uid"]]}
        user = {
            "username": f"system:serviceaccount:{namespace}:{name}",
            "extra": {f"authentication.kubernetes.io/{claim}": value for claim, value in claims.items()},
        }
        token = secrets.token_hex(8)
        self.server.tokens[token] = user, audience
        return token

    # --- on demand ------------------------------------------------------------------------------------------------

    def admit_by(self, admission: Admission) -> None:
        """Add an admission check, called before each object is created."""
        self._api.admissions.append(admission)

    def lose_node(self, name: str) -> None:
        """Its kubelet stops answering; its Pods continue to run."""
        self._kubelets[name].set_lost(True)
        self._tell_node(name, is_ready=False)

    def return_node(self, name: str) -> None:
        self._tell_node(name, is_ready=True)
        self._kubelets[name].set_lost(False)

    def _tell_node(self, name: str, *, is_ready: bool) -> None:
        node = self.store.get(NODES, ("", name))
        taints = [{"key": _UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        status = node["status"] | {"conditions": [_ready("True" if is_ready else "Unknown")]}
        self.store.change(NODES, ("", name), spec={} if is_ready else {"taints": taints}, status=status)

    def kill_for_memory(self, namespace: str, pod: str) -> None:
        """As the kernel does at a container's limit."""
        found = self.store.get(PODS, (namespace, pod))
        run = self._kubelets[found["spec"]["nodeName"]].run_of(found["metadata"]["uid"])
        for container in run.containers if run else ():
            container.kill_for_memory()


def _ready(status: str) -> Manifest:
    return {"type": "Ready", "status": status, "reason": "Double", "lastTransitionTime": now()}


def _node(name: str) -> Manifest:
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [_ready("True")],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }


def _kubeconfig(url: str, namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "double", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "double", "user": "test", "namespace": namespace}}],
        "current-context": "test",
    }
