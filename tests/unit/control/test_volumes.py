"""What is said of volumes that an engine cannot hold to what the admin declared."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.control.world import ANN

from commonage.control.settings import ControlSettings
from commonage.control.volumes import Volumes, see_that_all_can_be_mounted
from commonage.domain.errors import InvalidInput
from commonage.domain.sightings import Capabilities
from commonage.domain.volumes import Volume, VolumeKind, VolumeRequest

DATASETS = Volume("datasets", source="/srv/datasets")
RESULTS = Volume("results", kind=VolumeKind.DOCKER, writable=True, size_mib=1024)
SCRATCH = Volume("scratch", kind=VolumeKind.SCRATCH, writable=True, size_mib=1024)
QUICK = Volume("quick", kind=VolumeKind.SCRATCH, writable=True, size_mib=64, memory=True)
NO_SIZE = "its size is not bounded here"


@dataclass
class Case:
    """What an engine can do, the notes on each volume, and whose sizes the admin is told of."""

    engine: Capabilities
    notes: dict[str, tuple[str, ...]]
    loose: str


LINK = "a link in ~/volumes here: read-only is an agreement, not a wall"
CASES = [
    Case(Capabilities("docker", mounts=True, bounds_volumes=True), {}, ""),
    Case(Capabilities("swarm", mounts=True), {"results": (NO_SIZE,), "scratch": (NO_SIZE,)}, "results, scratch"),
    Case(
        Capabilities("process"),
        {"datasets": (LINK,), "results": (NO_SIZE,), "scratch": (NO_SIZE,), "quick": (NO_SIZE,)},
        "results, scratch, quick",
    ),
]


def volumes_on(engine: Capabilities) -> Volumes:
    fleet = cast(Any, SimpleNamespace(capabilities=lambda: [engine]))
    return Volumes(fleet, ControlSettings(volumes=(DATASETS, RESULTS, SCRATCH, QUICK)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.engine.name)
def test_a_size_that_does_not_hold_is_told(case: Case) -> None:
    volumes = volumes_on(case.engine)
    assert {one.volume.name: one.notes for one in volumes.offered(ANN) if one.notes} == case.notes
    said = volumes.warnings()
    assert len(said) == bool(case.loose)
    assert all(one.startswith(f"Nothing holds the size of {case.loose}: {case.engine.name} cannot") for one in said)


def test_only_where_nothing_is_mounted_a_place_of_ones_own_is_refused() -> None:
    asked = [VolumeRequest("datasets", None, "/data")]
    see_that_all_can_be_mounted(asked, [Capabilities("swarm", mounts=True)])
    with pytest.raises(InvalidInput, match="nothing is mounted here"):
        see_that_all_can_be_mounted(asked, [Capabilities("process")])
