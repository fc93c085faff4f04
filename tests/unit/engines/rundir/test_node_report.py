"""The report of a node's disk."""

from pathlib import Path

from commonage.domain.reasons.nodes import DiskNearlyFull, FolderNotReadable
from commonage.engines.rundir.node_report import disk_pressure_of, free_on


def test_fullest_disk_counts(tmp_path: Path) -> None:
    free, wrong = free_on(tmp_path, Path("/proc"))
    assert (free, wrong) == (0, ())


def test_a_folder_that_is_away_is_a_fault_and_not_the_end(tmp_path: Path) -> None:
    away = tmp_path / "share"
    assert free_on(tmp_path, away) == (None, (FolderNotReadable(folder=str(away), error="No such file or directory"),))


def test_it_is_tight_below_what_is_needed() -> None:
    assert disk_pressure_of(99, 100, "/data", "/docker") == DiskNearlyFull(
        folders=("/data", "/docker"), free_mib=99, min_mib=100
    )
    assert (disk_pressure_of(100, 100, "/data"), disk_pressure_of(None, 100, "/data")) == (None, None)
