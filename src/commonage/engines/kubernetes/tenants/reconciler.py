"""Keeps the namespaces of tenants and their policies in the cluster as the platform wants them.

It touches only objects with the label of this installation. A namespace is deleted only when offboarding says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commonage.domain.errors import EngineFailure
from commonage.domain.tenants import Tenant
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import INSTALLATION, PART
from commonage.engines.kubernetes.tenants.namespaces import POLICY, manifests_of, namespace_of
from commonage.engines.settings import KubernetesPolicySettings

KEPT = (
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ResourceQuota"),
    ("v1", "LimitRange"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
"""Kinds of which those that are no longer wanted are removed."""

Key = tuple[str, str, str]  # kind, namespace, name


class Applier(Protocol):
    """The objects of a cluster. Every method raises EngineFailure."""

    async def apply(self, manifest: Manifest) -> Manifest:
        """By server-side apply, under the platform's field manager; return the object as it is now."""

    async def delete(self, manifest: Manifest) -> None:
        """Delete the object that this names. A missing one is no error."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """The object that this names; None if there is none."""

    async def list(self, api_version: str, kind: str, selector: str, namespace: str) -> Sequence[Manifest]:
        """Objects with these labels in the namespace; empty for objects of the cluster."""


@dataclass(slots=True)
class TenantsReport:
    """The changes of one turn: objects as `KIND NAMESPACE/NAME`. `failed` has the cluster's message of each."""

    applied: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class TenantReconciler:
    """`turn` is called again and again, one at a time; what failed is tried again at the next."""

    def __init__(self, applier: Applier, settings: KubernetesPolicySettings) -> None:
        self._applier, self._settings = applier, settings
        self._known: dict[Key, tuple[str, str]] = {}  # digest of what was applied, and the version that came of it

    async def turn(self, tenants: Sequence[Tenant], offboarded: Collection[str] = ()) -> TenantsReport:
        """`offboarded`: tenants whose data the platform's offboarding has dealt with; their namespaces are deleted."""
        report = TenantsReport()
        found = await self._ours()
        by_namespace: dict[str, list[Manifest]] = {}
        for manifest in manifests_of([one for one in tenants if one.name not in offboarded], self._settings):
            by_namespace.setdefault(_namespace(manifest), []).append(manifest)
        for namespace, wanted in by_namespace.items():
            await self._apply_all(wanted, found, report)
            keys = {key_of(manifest) for manifest in wanted}
            for key, present in found.items():
                if key[1] == namespace and key not in keys and key[0] in {kind for _, kind in KEPT}:
                    await self._delete(present, report)
        if not self._settings.single:
            for tenant in offboarded:
                key = ("Namespace", "", namespace_of(tenant, self._settings))
                if key in found:
                    await self._delete(found[key], report)
        return report

    async def _ours(self) -> Mapping[Key, Manifest]:
        """Namespaces of this installation, and what it keeps in them."""
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
                made = await self._applier.apply(manifest)
            except EngineFailure as failure:
                report.failed[_text(key)] = str(failure)
                if key[0] == "Namespace":  # without it, nothing in it can be
                    return
            else:
                self._known[key] = digest, _version(made)
                report.applied.append(_text(key))

    async def _delete(self, manifest: Manifest, report: TenantsReport) -> None:
        key = key_of(manifest)
        if "deletionTimestamp" in manifest["metadata"]:
            return
        try:
            await self._applier.delete(manifest)
        except EngineFailure as failure:
            report.failed[_text(key)] = str(failure)
        else:
            self._known.pop(key, None)
            report.removed.append(_text(key))

    def _is_ours(self, manifest: Manifest) -> bool:
        labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
        return labels.get(INSTALLATION) == label_value(self._settings.installation)


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
