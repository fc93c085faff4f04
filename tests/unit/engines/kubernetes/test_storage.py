"""Claims of homes and volumes, and the volumes of a pod."""

from __future__ import annotations

import pytest
from tests.unit.engines.kubernetes.manifests import assert_golden

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.claims import (
    home_claim,
    quantity_mib,
    restored_claim,
    snapshot,
    updated_claim,
)
from commonage.engines.kubernetes.storage.file_pod import FilePlace, file_pod
from commonage.engines.kubernetes.storage.mounts import home_volume
from commonage.engines.settings import KubernetesSettings, KubernetesStorageSettings

SETTINGS = KubernetesStorageSettings(storage_class="fast")
NAMESPACE = "commonage-physics"


def claim(mib: int = 2048) -> Manifest:
    return home_claim("Ada Lovelace", "physics", mib, NAMESPACE, "campus", SETTINGS)


def bound(mib: int) -> Manifest:
    made = claim(mib)
    return {**made, "spec": {**made["spec"], "volumeName": "pv-1"}, "status": {"phase": "Bound"}}


def test_file_pod_is_bounded_like_any_other_pod() -> None:
    settings = KubernetesSettings(homes="claim", storage=KubernetesStorageSettings(files_image="commonage:1"))
    place = FilePlace(NAMESPACE, "physics", home_volume("ada", settings))

    assert_golden("file-pod", [file_pod(place, "campus", settings, "node-1")])


def test_snapshot_and_the_claim_restored_from_it() -> None:
    taken = snapshot(claim(), "2026-11-24", "csi")

    assert_golden("snapshot", [taken, restored_claim(claim(), taken, "home-ada-restored")])


def test_a_claim_grows_where_its_class_allows_it() -> None:
    grown = updated_claim(claim(4096), bound(2048), {"allowVolumeExpansion": True})

    assert grown is not None
    assert grown["spec"]["resources"]["requests"]["storage"] == "4096Mi"
    assert grown["spec"]["volumeName"] == "pv-1"


@pytest.mark.parametrize(
    ("wanted", "present", "storage_class"),
    [
        (1024, bound(2048), {"allowVolumeExpansion": True}),
        (2048, bound(2048), {"allowVolumeExpansion": True}),
        (4096, bound(2048), {}),
        (4096, bound(2048), None),
        (4096, claim(2048), {"allowVolumeExpansion": True}),
    ],
    ids=["smaller", "equal", "class-forbids", "no-class", "not-bound"],
)
def test_a_claim_stays_otherwise(wanted: int, present: Manifest, storage_class: Manifest | None) -> None:
    assert updated_claim(claim(wanted), present, storage_class) is None


@pytest.mark.parametrize(
    ("text", "mib"),
    [("10Gi", 10240), ("1.5Gi", 1536), ("512Mi", 512), ("1048576", 1), ("2G", 1907), ("1Ti", 1 << 20), ("1e9", 953)],
)
def test_reads_quantities(text: str, mib: int) -> None:
    assert quantity_mib(text) == mib
