"""The loop that keeps tenants' namespaces: it touches only what is ours, and deletes no data."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from itertools import count

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.tenants import Bounds, Quota, Tenant
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.reconciler import Key, TenantReconciler, TenantsReport, key_of
from commonage.engines.settings import KubernetesPolicySettings

SETTINGS = KubernetesPolicySettings("campus")
BOUNDED = Tenant("physics", quota=Quota(Bounds(storage_mib=100)))


class Objects:
    """The objects of a cluster in memory. `broken`: kinds that it refuses."""

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.broken: set[str] = set()
        self._versions = count(1)

    async def apply(self, manifest: Manifest) -> Manifest:
        if manifest["kind"] in self.broken:
            raise EngineFailure("the cluster refused it", retryable=True)
        made = copy.deepcopy(manifest)
        made["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key_of(manifest)] = made
        return made

    async def delete(self, manifest: Manifest) -> None:
        self.objects.pop(key_of(manifest), None)

    async def get(self, manifest: Manifest) -> Manifest | None:
        return self.objects.get(key_of(manifest))

    async def list(self, api_version: str, kind: str, selector: str, namespace: str) -> Sequence[Manifest]:
        if kind in self.broken:
            raise EngineFailure("the cluster refused it", retryable=True)
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            one
            for key, one in self.objects.items()
            if key[:2] == (kind, namespace) and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]


def turn(reconciler: TenantReconciler, *tenants: Tenant) -> TenantsReport:
    return asyncio.run(reconciler.turn(tenants))


def test_applies_once_and_again_only_after_a_change() -> None:
    objects = Objects()
    reconciler = TenantReconciler(objects, SETTINGS)

    assert "Namespace commonage-physics" in turn(reconciler, BOUNDED).applied
    assert turn(reconciler, BOUNDED).applied == []

    key = ("LimitRange", "commonage-physics", "commonage")
    objects.objects[key]["metadata"]["resourceVersion"] = "changed by others"
    assert turn(reconciler, BOUNDED).applied == ["LimitRange commonage-physics/commonage"]

    del objects.objects[key]
    assert turn(reconciler, BOUNDED).applied == ["LimitRange commonage-physics/commonage"]


def test_removes_a_quota_that_is_no_longer_set() -> None:
    reconciler = TenantReconciler(Objects(), SETTINGS)
    turn(reconciler, BOUNDED)

    assert turn(reconciler, Tenant("physics")).removed == ["ResourceQuota commonage-physics/commonage"]


def test_leaves_what_is_not_ours() -> None:
    objects = Objects()
    for kind, name in (("Namespace", "commonage-physics"), ("NetworkPolicy", "foreign")):
        meta = {"name": name, **({} if kind == "Namespace" else {"namespace": "commonage-physics"})}
        objects.objects[kind, meta.get("namespace", ""), name] = {"kind": kind, "apiVersion": "v1", "metadata": meta}
    before = copy.deepcopy(objects.objects)

    report = turn(TenantReconciler(objects, SETTINGS), BOUNDED)

    assert "is not of this installation" in report.failed["Namespace commonage-physics"]
    assert objects.objects == before


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim", "VolumeSnapshot"])
def test_the_namespace_of_a_tenant_that_is_gone_stays_until_it_is_empty(kind: str) -> None:
    objects = Objects()
    reconciler = TenantReconciler(objects, SETTINGS)
    turn(reconciler, BOUNDED)
    objects.objects[kind, "commonage-physics", "left"] = {"metadata": {"name": "left"}}
    before = dict(objects.objects)

    report = turn(reconciler)
    assert (report.removed, report.left) == ([], {"commonage-physics": (f"{kind} left",)})
    assert objects.objects == before

    del objects.objects[kind, "commonage-physics", "left"]
    assert turn(reconciler).removed == ["Namespace commonage-physics"]


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim", "VolumeSnapshot"])
def test_a_namespace_whose_data_cannot_be_listed_stays(kind: str) -> None:
    objects = Objects()
    reconciler = TenantReconciler(objects, SETTINGS)
    turn(reconciler, BOUNDED)
    objects.broken = {kind}

    report = turn(reconciler)
    assert (report.removed, list(report.failed)) == ([], ["Namespace commonage-physics"])


def test_many_objects_that_are_left_are_counted() -> None:
    objects = Objects()
    reconciler = TenantReconciler(objects, SETTINGS)
    turn(reconciler, BOUNDED)
    for number in range(30):
        name = f"home-{number}"
        objects.objects["PersistentVolumeClaim", "commonage-physics", name] = {"metadata": {"name": name}}

    [held] = turn(reconciler).left.values()
    assert (held[0], held[-1], len(held)) == ("PersistentVolumeClaim home-0", "22 more", 9)


def test_a_namespace_that_an_admin_made_is_never_deleted() -> None:
    objects = Objects()
    labels = {"commonage.dev/installation": "campus"}
    adopted = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "commonage-physics", "labels": labels}}
    objects.objects[key_of(adopted)] = adopted
    reconciler = TenantReconciler(objects, SETTINGS)

    assert turn(reconciler, BOUNDED).failed == {}
    assert (report := turn(reconciler)).removed == []
    assert report.left == {"commonage-physics": ()}


def test_an_applied_namespace_keeps_the_note_that_commonage_made_it() -> None:
    objects = Objects()
    turn(TenantReconciler(objects, SETTINGS), BOUNDED)
    turn(TenantReconciler(objects, SETTINGS), BOUNDED)  # another process, which applies everything once

    assert objects.objects["Namespace", "", "commonage-physics"]["metadata"]["annotations"] == {
        "commonage.dev/made": "true"
    }


def test_a_failure_is_reported_and_tried_again() -> None:
    objects = Objects()
    reconciler = TenantReconciler(objects, SETTINGS)
    objects.broken = {"LimitRange"}

    assert turn(reconciler, BOUNDED).failed == {"LimitRange commonage-physics/commonage": "the cluster refused it"}

    objects.broken = set()
    assert turn(reconciler, BOUNDED).applied == ["LimitRange commonage-physics/commonage"]
