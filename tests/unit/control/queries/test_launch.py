"""Notes on volumes whose declaration an engine cannot enforce."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.control.world import ANN

from commonage.control.queries.launch import Volumes, check_mountable
from commonage.control.settings import ControlSettings
from commonage.control.usage.homes import HomeWatch
from commonage.domain.errors import InvalidInput
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import VolumeIsLink, VolumeSizeNotEnforced
from commonage.domain.reasons.notes import StorageGap, StorageNotEnforced
from commonage.domain.statuses import Capabilities
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest
from commonage.ports.homes import Enforcement
from commonage.testing.fakes.clock import FakeClock

DATASETS = Volume("datasets", source="/srv/datasets")
RESULTS = Volume("results", kind=VolumeKind.DOCKER, writable=True, size_mib=1024)
SCRATCH = Volume("scratch", kind=VolumeKind.SCRATCH, writable=True, size_mib=1024)
QUICK = Volume("quick", kind=VolumeKind.SCRATCH, writable=True, size_mib=64, memory=True)


@dataclass
class Case:
    """Capabilities of an engine, the notes on each volume, and the volumes whose sizes the admin is warned about."""

    engine: Capabilities
    notes: dict[str, tuple[Reason, ...]]
    loose: str


NO_SIZE = VolumeSizeNotEnforced(nodes=("a", "b"))
SOME = VolumeSizeNotEnforced(nodes=("worker3",), enforced_on=("gpu-1", "gpu-2"))
ABC = tuple("abcdefg")
NO_SIZE_HERE = VolumeSizeNotEnforced(nodes=("here",))
CASES = [
    Case(Capabilities("docker", mounts=True, bounded_on=("here",)), {}, ""),
    Case(
        Capabilities("swarm-none", mounts=True, unbounded_on=("a", "b")),
        {"results": (NO_SIZE,), "scratch": (NO_SIZE,)},
        "results, scratch on a, b, so",
    ),
    Case(
        Capabilities("swarm-some", mounts=True, bounded_on=("gpu-1", "gpu-2"), unbounded_on=("worker3",)),
        {"results": (SOME,), "scratch": (SOME,)},
        "results, scratch on worker3, so",
    ),
    Case(
        Capabilities("swarm-many", mounts=True, bounded_on=ABC[:5], unbounded_on=ABC[1:]),
        dict.fromkeys(("results", "scratch"), (VolumeSizeNotEnforced(nodes=ABC[1:], enforced_on=ABC[:5]),)),
        "results, scratch on b, c, d, e and 2 more, so",
    ),
    Case(
        Capabilities("process", unbounded_on=("here",)),
        {"datasets": (VolumeIsLink(),), **dict.fromkeys(("results", "scratch", "quick"), (NO_SIZE_HERE,))},
        "results, scratch, quick on here, so",
    ),
]


def volumes_on(engine: Capabilities) -> Volumes:
    node_pool = cast(Any, SimpleNamespace(capabilities=lambda *_: [engine]))
    settings = ControlSettings(volumes=(DATASETS, RESULTS, SCRATCH, QUICK))
    return Volumes(node_pool, settings, HomeWatch(None, FakeClock(), settings))


@pytest.mark.parametrize(
    ("gap", "quota", "told"),
    [
        (StorageGap.NO_PROJECT_QUOTAS, Quota(Bounds(storage_mib=1)), True),
        (StorageGap.NOT_PERMITTED, Quota(per_user=Bounds(storage_mib=1)), True),
        (None, Quota(Bounds(storage_mib=1)), False),
        (StorageGap.NO_PROJECT_QUOTAS, Quota(Bounds(running=1)), False),
    ],
)
def test_volume_says_whether_quotas_of_storage_are_enforced(gap: StorageGap | None, quota: Quota, told: bool) -> None:
    labs = Volume("labs", source="/srv/labs/{tenant}", writable=True, tenants=("lab",))
    settings = ControlSettings(
        volumes=(labs, DATASETS), rules=Rules((Tenant("lab", quota=quota),)), default_tenant="lab"
    )
    enforcement = Enforcement(None, {} if gap is None else {"labs": gap})
    homes = cast(Any, SimpleNamespace(enforcement=enforcement, folder_mib=lambda *_: None))
    engine = cast(Any, SimpleNamespace(capabilities=lambda *_: [Capabilities("docker", mounts=True)]))
    notes = {one.volume.name: one.notes for one in Volumes(engine, settings, homes).offered(ANN)}
    expected = (StorageNotEnforced(gap=gap),) if told and gap is not None else ()
    assert notes == {"labs": expected, "datasets": ()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.engine.name)
def test_a_size_that_does_not_hold_is_told(case: Case) -> None:
    volumes = volumes_on(case.engine)
    assert {one.volume.name: one.notes for one in volumes.offered(ANN) if one.notes} == case.notes
    said = volumes.warnings()
    assert len(said) == bool(case.loose)
    assert all(one.startswith(f"Nothing enforces the size of {case.loose} they can fill") for one in said)


def test_which_nodes_hold_a_size_is_told_of_each_volume() -> None:
    engine = Capabilities("swarm", mounts=True, bounded_on=("b",), unbounded_on=("a",))
    found = {one.volume.name: (one.bounded_on, one.unbounded_on) for one in volumes_on(engine).offered(ANN)}
    some = (("b",), ("a",))
    assert found == {"datasets": ((), ()), "results": some, "scratch": some, "quick": (("a", "b"), ())}


def test_only_where_nothing_is_mounted_a_place_of_ones_own_is_refused() -> None:
    asked = [VolumeRequest("datasets", None, "/data")]
    check_mountable(asked, [Capabilities("swarm", mounts=True)])
    with pytest.raises(InvalidInput, match="MountsNotSupported"):
        check_mountable(asked, [Capabilities("process")])
