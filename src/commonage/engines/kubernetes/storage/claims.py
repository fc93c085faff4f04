"""Claims of homes and volumes, their growth and their snapshots.

A claim is the tenant's data: the engine makes and grows it, and never deletes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import milli
from commonage.engines.kubernetes.tenants.names import DOMAIN, OWNER, TENANT, metadata, object_name
from commonage.engines.settings import KubernetesStorageSettings

CLAIM_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
VOLUME = f"{DOMAIN}/volume"
_PART = "data"
_SHARED = "ReadWriteMany"


def home_claim_name(user: str) -> str:
    return object_name("home", user)


def volume_claim_name(source: str) -> str:
    """`source`: the name of the volume with its owner, as in the mount of an attempt."""
    return object_name("volume", source)


def home_claim(
    user: str, tenant: str, mib: int | None, namespace: str, installation: str, settings: KubernetesStorageSettings
) -> Manifest:
    """`mib`: what each member of the tenant may store; None: the site's default."""
    labels = {TENANT: tenant, OWNER: user}
    meta = metadata(home_claim_name(user), installation, labels, namespace=namespace, part=_PART)
    return _claim(meta, settings.access, settings.storage_class, settings.home_mib if mib is None else mib)


def volume_claim(
    mount: Mount, tenant: str, namespace: str, installation: str, settings: KubernetesStorageSettings
) -> Manifest:
    """The claim of a volume that the cluster keeps (`docker` elsewhere). Several pods write to it on any node."""
    labels = {TENANT: tenant, VOLUME: mount.name}
    meta = metadata(volume_claim_name(mount.source), installation, labels, namespace=namespace, part=_PART)
    return _claim(meta, _SHARED, settings.volume_class, mount.size_mib or settings.volume_mib)


def volume_claims(
    mounts: tuple[Mount, ...], tenant: str, namespace: str, installation: str, settings: KubernetesStorageSettings
) -> tuple[Manifest, ...]:
    """The claims that an attempt needs, without that of the home."""
    kept = (mount for mount in mounts if mount.kind is VolumeKind.DOCKER)
    return tuple(volume_claim(mount, tenant, namespace, installation, settings) for mount in kept)


def _claim(meta: Manifest, access: str, storage_class: str, mib: int) -> Manifest:
    spec: Manifest = {"accessModes": [access], "resources": {"requests": {"storage": f"{mib}Mi"}}}
    if storage_class:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def updated_claim(wanted: Manifest, present: Manifest, storage_class: Manifest | None) -> Manifest | None:
    """The manifest to apply to an existing claim; None: change nothing.

    Its size grows if the class allows it, and never shrinks. Nothing else of a claim can change. `storage_class`:
    that of the present claim.
    """
    size = size_mib(wanted)
    if not is_smaller(present, wanted) or not (storage_class or {}).get("allowVolumeExpansion"):
        return None
    if (present.get("status") or {}).get("phase") != "Bound":  # the cluster refuses to grow a claim without a volume
        return None
    # Fields that were applied before and are missing now would be removed, and these cannot change.
    spec: Mapping[str, object] = present["spec"]
    kept = {key: spec[key] for key in ("accessModes", "storageClassName", "volumeMode", "volumeName") if key in spec}
    return {**wanted, "spec": {**kept, "resources": {"requests": {"storage": f"{size}Mi"}}}}


def is_smaller(present: Manifest, wanted: Manifest) -> bool:
    return size_mib(present) < size_mib(wanted)


def is_shared(claim: Manifest) -> bool:
    """Whether Pods on several nodes can mount it."""
    modes = claim["spec"].get("accessModes") or ()
    return not modes or bool({"ReadWriteMany", "ReadOnlyMany"} & set(modes))


def size_mib(claim: Manifest) -> int:
    """MiB, rounded down."""
    return quantity_mib(str(claim["spec"]["resources"]["requests"]["storage"]))


def snapshot(claim: Manifest, name: str, snapshot_class: str = "") -> Manifest:
    """A snapshot of a claim, where the cluster has the kind VolumeSnapshot."""
    source: Manifest = {"source": {"persistentVolumeClaimName": claim["metadata"]["name"]}}
    if snapshot_class:
        source["volumeSnapshotClassName"] = snapshot_class
    of = claim["metadata"]
    meta = {**of, "name": object_name(of["name"][:40].rstrip("-"), name)}
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": meta,
        "spec": source,
    }


def restored_claim(claim: Manifest, taken: Manifest, name: str) -> Manifest:
    """A new claim with the content of the snapshot."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": taken["metadata"]["name"]}
    return {
        **claim,
        "metadata": {**claim["metadata"], "name": name},
        "spec": {**claim["spec"], "dataSource": source},
    }


def quantity_mib(text: str) -> int:
    """A quantity of Kubernetes in MiB, rounded down."""
    return (milli(text) // 1000) >> 20
