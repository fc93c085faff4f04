"""Applies the objects of tenants through the client of the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.engines.kubernetes.client import NAMESPACES, PODS, Client, Refused, Resource
from commonage.engines.kubernetes.manifest import Manifest

NETWORK_POLICIES = Resource("/apis/networking.k8s.io/v1", "networkpolicies")
_RESOURCES = {
    "Namespace": NAMESPACES,
    "LimitRange": Resource("/api/v1", "limitranges"),
    "NetworkPolicy": NETWORK_POLICIES,
    "PersistentVolumeClaim": Resource("/api/v1", "persistentvolumeclaims"),
    "Pod": PODS,
    "ResourceQuota": Resource("/api/v1", "resourcequotas"),
    "RoleBinding": Resource("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "VolumeSnapshot": Resource("/apis/snapshot.storage.k8s.io/v1", "volumesnapshots"),
}
_OF_DRIVERS = frozenset({"VolumeSnapshot"})  # a cluster knows them only if a storage driver brought their CRD
_NOT_FOUND = 404


class ClientApplier:
    """The kinds that the loop of the tenants keeps. Every method raises EngineFailure."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, manifest: Manifest) -> Manifest:
        return await self._client.apply(_RESOURCES[manifest["kind"]], manifest)

    async def delete(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        await self._client.delete(_path(manifest), uid=meta.get("uid"))

    async def get(self, manifest: Manifest) -> Manifest | None:
        return await self._client.find(_path(manifest))

    async def list(self, api_version: str, kind: str, selector: str, namespace: str) -> Sequence[Manifest]:
        try:
            found = await self._client.list_all(_RESOURCES[kind].path(namespace or None), selector)
        except Refused as error:
            if error.http_status == _NOT_FOUND and kind in _OF_DRIVERS:
                return []
            raise
        # The items of a list have no kind of their own.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found.items]


def _path(manifest: Manifest) -> str:
    meta = manifest["metadata"]
    return _RESOURCES[manifest["kind"]].path(meta.get("namespace"), meta["name"])
