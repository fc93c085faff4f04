"""The objects of the cluster, their versions, and the history that watches read. Used by the API server's double.

Each write gets the next resourceVersion. Listeners are called at once, in the order of the writes.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest


class ApiError(Exception):
    """A refusal, as the API server answers it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.http_status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that the double knows."""

    api: str
    plural: str
    name: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("/api/").removeprefix("/apis/")


KINDS = (
    PODS := Kind("/api/v1", "pods", "Pod"),
    NODES := Kind("/api/v1", "nodes", "Node", is_namespaced=False),
    NAMESPACES := Kind("/api/v1", "namespaces", "Namespace", is_namespaced=False),
    SECRETS := Kind("/api/v1", "secrets", "Secret"),
    CONFIG_MAPS := Kind("/api/v1", "configmaps", "ConfigMap"),
    Kind("/api/v1", "services", "Service"),
    NETWORK_POLICIES := Kind("/apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    EVENTS := Kind("/api/v1", "events", "Event"),
    VOLUME_CLAIMS := Kind("/api/v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    SNAPSHOTS := Kind("/apis/snapshot.storage.k8s.io/v1", "volumesnapshots", "VolumeSnapshot"),
    QUOTAS := Kind("/api/v1", "resourcequotas", "ResourceQuota"),
    Kind("/api/v1", "limitranges", "LimitRange"),
    Kind("/apis/rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    LOCAL_QUEUES := Kind("/apis/kueue.x-k8s.io/v1beta1", "localqueues", "LocalQueue"),
    CLUSTER_QUEUES := Kind("/apis/kueue.x-k8s.io/v1beta1", "clusterqueues", "ClusterQueue", is_namespaced=False),
    FLAVORS := Kind("/apis/kueue.x-k8s.io/v1beta1", "resourceflavors", "ResourceFlavor", is_namespaced=False),
    DEVICE_CLAIMS := Kind("/apis/resource.k8s.io/v1", "resourceclaims", "ResourceClaim"),
    SLICES := Kind("/apis/resource.k8s.io/v1", "resourceslices", "ResourceSlice", is_namespaced=False),
    CLASSES := Kind("/apis/resource.k8s.io/v1", "deviceclasses", "DeviceClass", is_namespaced=False),
)

Key = tuple[str, str]
"""Namespace (empty without one) and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` and `after`: None if the object was not there then, or is not any more."""

    version: int
    kind: Kind
    before: Manifest | None
    after: Manifest | None


OnChange = Callable[[Change], None]


def now() -> str:
    """The time as objects have it: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(manifest: Manifest) -> Key:
    metadata = manifest["metadata"]
    return str(metadata.get("namespace", "")), str(metadata["name"])


class Store:
    """Manifests that it returns are never changed: a write replaces them."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Manifest]] = {kind.plural: {} for kind in KINDS}
        self._listeners: list[OnChange] = []
        self._pending: list[Change] = []
        self._is_telling = False
        self.history: list[Change] = []
        self.version = 1000
        self.oldest = 1000
        """Changes up to this version are forgotten."""

    def listen(self, on_change: OnChange) -> Callable[[], None]:
        """Call it at each change, in order; the result ends that."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def forget_history(self) -> None:
        """Watches from earlier versions are answered with 410."""
        self.history.clear()
        self.oldest = self.version

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, kind: Kind, key: Key) -> Manifest | None:
        return self._objects[kind.plural].get(key)

    def get(self, kind: Kind, key: Key) -> Manifest:
        found = self.find(kind, key)
        if found is None:
            raise ApiError(404, "NotFound", f'{kind.plural} "{key[1]}" not found')
        return found

    def all(self, kind: Kind, namespace: str = "") -> Iterator[Manifest]:
        """By name; of all namespaces if it is empty."""
        for key, found in sorted(self._objects[kind.plural].items()):
            if namespace in ("", key[0]):
                yield found

    # --- writing --------------------------------------------------------------------------------------------------

    def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        key = key_of(manifest)
        if key in self._objects[kind.plural]:
            raise ApiError(409, "AlreadyExists", f'{kind.plural} "{key[1]}" already exists')
        own = {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        made = manifest | {"apiVersion": kind.api_version, "kind": kind.name, "metadata": manifest["metadata"] | own}
        return self._write(kind, key, None, made)

    def update(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Write it if it differs. Another uid than its own is refused, and a resourceVersion that is not the last."""
        key = key_of(manifest)
        before = self.get(kind, key)
        _check_is_last(kind, before, manifest)
        if manifest == before:
            return before
        return self._write(kind, key, before, manifest)

    def change(self, kind: Kind, key: Key, **parts: Any) -> Manifest | None:
        """Replace whole parts, such as `status`; None if it is not there."""
        found = self.find(kind, key)
        return None if found is None else self.update(kind, found | parts)

    def remove(self, kind: Kind, key: Key) -> None:
        """Remove it, then what it owns; with a namespace, all that is in it."""
        before = self._objects[kind.plural].pop(key)
        self.version += 1
        last = before | {"metadata": before["metadata"] | {"resourceVersion": str(self.version)}}
        uid = before["metadata"]["uid"]
        self._tell(Change(self.version, kind, last, None))
        for owned in KINDS:
            for one in list(self.all(owned)):
                owners = one["metadata"].get("ownerReferences") or ()
                is_inside = kind is NAMESPACES and key_of(one)[0] == key[1]
                if is_inside or (owners and all(owner["uid"] == uid for owner in owners)):
                    self.remove(owned, key_of(one))

    def _write(self, kind: Kind, key: Key, before: Manifest | None, after: Manifest) -> Manifest:
        """It is copied, so that its parts may be the caller's."""
        self.version += 1
        metadata = after["metadata"] | {"resourceVersion": str(self.version)}
        made = copy.deepcopy(after | {"metadata": metadata})
        self._objects[kind.plural][key] = made
        self._tell(Change(self.version, kind, before, made))
        return made

    def _tell(self, change: Change) -> None:
        """A listener that writes gets its own change after all listeners got this one."""
        self.history.append(change)
        self._pending.append(change)
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._pending:
                one = self._pending.pop(0)
                for listener in tuple(self._listeners):
                    listener(one)
        finally:
            self._is_telling = False


def check_precondition(kind: Kind, found: Manifest, name: str, wanted: Any) -> None:
    """Raises a conflict if the uid or resourceVersion of an object to be deleted is not the wanted one."""
    has = found["metadata"][name]
    if wanted in (None, has):
        return
    word, why = {"uid": ("UID", "deleted and then recreated"), "resourceVersion": ("ResourceVersion", "modified")}[name]
    raise ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.name} "{found["metadata"]["name"]}": the {word} in the precondition '
        f"({wanted}) does not match the {word} in record ({has}). The object might have been {why}",
    )


def _check_is_last(kind: Kind, before: Manifest, manifest: Manifest) -> None:
    old, new = before["metadata"], manifest["metadata"]
    if new.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {kind.plural} "{old["name"]}": the object has been modified; please '
            "apply your changes to the latest version and try again",
        )
    if new.get("uid", old["uid"]) != old["uid"]:
        told = f'metadata.uid: Invalid value: "{new["uid"]}": field is immutable'
        raise ApiError(422, "Invalid", f'{kind.name} "{old["name"]}" is invalid: {told}')


def matches_labels(manifest: Manifest, selector: Mapping[str, str | None]) -> bool:
    """`selector`: label to value; None if it must only be there."""
    labels = manifest["metadata"].get("labels") or {}
    return all(name in labels and value in (None, labels[name]) for name, value in selector.items())


def matches_fields(manifest: Manifest, selector: Mapping[str, str]) -> bool:
    for path, value in selector.items():
        found: Any = manifest
        for part in path.split("."):
            found = (found or {}).get(part)
        if (found or "") != value:
            return False
    return True
