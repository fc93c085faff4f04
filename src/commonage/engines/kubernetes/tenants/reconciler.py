"""Keeps the namespaces of tenants and their policies in the cluster as the platform wants them.

It touches only objects with the label of this installation. It deletes the namespace of a tenant that is gone only if
Commonage made it and it has neither Pods nor claims nor VolumeSnapshots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commonage.domain.errors import EngineFailure
from commonage.domain.tenants import Tenant
from commonage.engines.kubernetes.client import Unreachable
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import INSTALLATION, MADE, PART
from commonage.engines.kubernetes.tenants.namespaces import POLICY, manifests_of
from commonage.engines.settings import KubernetesPolicySettings

KEPT = (
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ResourceQuota"),
    ("v1", "LimitRange"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
"""Kinds of which those that are no longer wanted are removed."""

_DATA = (("v1", "Pod"), ("v1", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"))
"""Kinds that keep the namespace of a tenant that is gone: with it, the cluster would delete their data."""

_NAMED = 8
Key = tuple[str, str, str]  # kind, namespace, name


class Applier(Protocol):
    """The objects of a cluster. Every method raises EngineFailure."""

    async def apply(self, manifest: Manifest) -> Manifest:
        """By server-side apply, under the platform's field manager; return the object as it is now."""

    async def delete(self, manifest: Manifest) -> None:
        """Delete the object that this names. A missing one is no error."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """The object with the name and kind of this one; None if it does not exist."""

    async def list(self, api_version: str, kind: str, selector: str, namespace: str) -> Sequence[Manifest]:
        """Objects with these labels in the namespace; empty for objects of the cluster.

        There are no VolumeSnapshots in a cluster that does not know this kind.
        """


@dataclass(slots=True)
class TenantsReport:
    """The changes of one turn: objects as `KIND NAMESPACE/NAME`. `failed` has the cluster's message of each.

    `faults` has the first failure in each namespace. `left` are namespaces of tenants that are gone, which stay, with
    the Pods, claims and snapshots in each as `KIND NAME`; one without any is not of Commonage's making.
    """

    applied: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    faults: dict[str, EngineFailure] = field(default_factory=dict)
    left: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def fail(self, manifest: Manifest, failure: EngineFailure) -> None:
        self.failed[_text(key_of(manifest))] = str(failure)
        self.faults.setdefault(_namespace(manifest), failure)


class TenantReconciler:
    """`turn` is called again and again, one at a time; what failed is tried again at the next."""

    def __init__(self, applier: Applier, settings: KubernetesPolicySettings) -> None:
        self._applier, self._settings = applier, settings
        self._known: dict[Key, tuple[str, str]] = {}  # digest of the applied object, and the resulting version

    async def turn(self, tenants: Sequence[Tenant]) -> TenantsReport:
        """`tenants` are all tenants of the site. Raises EngineFailure if the namespaces cannot be listed."""
        report = TenantsReport()
        found = await self._ours()
        by_namespace: dict[str, list[Manifest]] = {}
        for manifest in manifests_of(tenants, self._settings):
            by_namespace.setdefault(_namespace(manifest), []).append(manifest)
        for namespace, wanted in by_namespace.items():
            await self._apply_all(wanted, found, report)
            keys = {key_of(manifest) for manifest in wanted}
            for key, present in found.items():
                if key[1] == namespace and key not in keys and key[0] in {kind for _, kind in KEPT}:
                    await self._delete(present, report)
        for key, present in found.items():
            if key[0] == "Namespace" and key[2] not in by_namespace and "deletionTimestamp" not in present["metadata"]:
                await self._leave(present, report)
        return report

    async def _leave(self, namespace: Manifest, report: TenantsReport) -> None:
        """Delete the namespace of a tenant that is gone, if Commonage made it and nothing of the tenant is left."""
        name = namespace["metadata"]["name"]
        try:
            held = await self._held_in(name)
            if _is_made(namespace) and not held:
                await self._delete(namespace, report)
            else:
                report.left[name] = held
        except EngineFailure as failure:
            report.fail(namespace, failure)

    async def _held_in(self, namespace: str) -> tuple[str, ...]:
        found = [
            f"{kind} {one['metadata']['name']}"
            for api_version, kind in _DATA
            for one in await self._applier.list(api_version, kind, "", namespace)
        ]
        more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
        return (*found[:_NAMED], *more)

    async def _ours(self) -> Mapping[Key, Manifest]:
        """Namespaces of this installation, and its objects in them."""
        installation = f"{INSTALLATION}={label_value(self._settings.installation)}"
        namespaces = await self._applier.list("v1", "Namespace", installation, "")
        found = {key_of(one): one for one in namespaces}
        for one in namespaces:
            if "deletionTimestamp" in one["metadata"]:
                continue
            for api_version, kind in KEPT:
                try:
                    objects = await self._applier.list(
                        api_version, kind, f"{installation},{PART}={POLICY}", one["metadata"]["name"]
                    )
                except EngineFailure:  # until this namespace has the role binding
                    continue
                found |= {key_of(inner): inner for inner in objects}
        return found

    async def _apply_all(
        self, wanted: Sequence[Manifest], found: Mapping[Key, Manifest], report: TenantsReport
    ) -> None:
        for manifest in wanted:
            key, digest = key_of(manifest), _digest(manifest)
            present = found.get(key)
            if present is not None and self._known.get(key) == (digest, _version(present)):
                continue
            try:
                if present is None:
                    present = await self._applier.get(manifest)
                if present is not None and not self._is_ours(present):
                    raise EngineFailure(
                        f"there is a {key[0]} {key[2]} that is not of this installation; delete it, or set its label "
                        f"{INSTALLATION}={label_value(self._settings.installation)}",
                        retryable=True,
                    )
                # A field that is not applied again is removed.
                made = await self._applier.apply(
                    _marked(manifest) if present is None or _is_made(present) else manifest
                )
            except Unreachable:
                raise
            except EngineFailure as failure:
                report.fail(manifest, failure)
                if key[0] == "Namespace":  # without it, nothing in it can be
                    return
            else:
                self._known[key] = digest, _version(made)
                if present is None or _version(made) != _version(present):
                    report.applied.append(_text(key))

    async def _delete(self, manifest: Manifest, report: TenantsReport) -> None:
        key = key_of(manifest)
        if "deletionTimestamp" in manifest["metadata"]:
            return
        try:
            await self._applier.delete(manifest)
        except EngineFailure as failure:
            report.fail(manifest, failure)
        else:
            self._known.pop(key, None)
            report.removed.append(_text(key))

    def _is_ours(self, manifest: Manifest) -> bool:
        labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
        return labels.get(INSTALLATION) == label_value(self._settings.installation)


def _is_made(manifest: Manifest) -> bool:
    return MADE in (manifest["metadata"].get("annotations") or {})


def _marked(manifest: Manifest) -> Manifest:
    """A namespace gets the mark that Commonage created it."""
    if manifest["kind"] != "Namespace":
        return manifest
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), MADE: "true"}}}


def key_of(manifest: Manifest) -> Key:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def _namespace(manifest: Manifest) -> str:
    kind, namespace, name = key_of(manifest)
    return name if kind == "Namespace" else namespace


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("resourceVersion", ""))


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _text(key: Key) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
