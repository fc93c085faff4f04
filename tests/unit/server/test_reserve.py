from collections import namedtuple
from pathlib import Path

import pytest

from commonage.server.reserve import Reserve, why_full

_MIB = 1024 * 1024
Usage = namedtuple("Usage", "total used free")


class Disk:
    """A disk of 200 MiB of which others have some."""

    def __init__(self, place: Path) -> None:
        self.place, self.others_mib = place, 0

    def usage(self, _path: Path) -> Usage:
        kept = self.place.stat().st_size if self.place.exists() else 0
        return Usage(200 * _MIB, 0, 200 * _MIB - kept - self.others_mib * _MIB)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "reserve")
    monkeypatch.setattr("commonage.server.reserve.shutil.disk_usage", disk.usage)
    return disk


def test_it_is_given_up_in_portions_and_made_anew(disk: Disk) -> None:
    reserve = Reserve(disk.place, 40)
    reserve.adjust()
    assert reserve.size_now_mib == 40
    kept = []
    for others in (100, 160, 160, 176, 192, 200, 200):
        disk.others_mib = others
        reserve.adjust()
        kept.append(reserve.size_now_mib)
    assert kept == [40, 24, 24, 8, 0, 0, 0]
    assert not disk.place.exists()
    for others, expected in ((120, 0), (90, 40)):
        disk.others_mib = others
        reserve.adjust()
        assert reserve.size_now_mib == expected


def test_none_is_kept_where_none_is_wished_or_there_is_no_room(disk: Disk) -> None:
    Reserve(disk.place, 0).adjust()
    assert not disk.place.exists()
    Reserve(disk.place, 180).adjust()
    assert not disk.place.exists()
    Reserve(disk.place, 40).adjust()
    Reserve(disk.place, 10).adjust()
    assert Reserve(disk.place, 10).size_now_mib == 10
    Reserve(disk.place, 0).adjust()
    assert Reserve(disk.place, 0).size_now_mib == 0


def test_that_nothing_can_be_written_is_said(disk: Disk) -> None:
    folder = disk.place.parent
    assert why_full(folder) == ""
    disk.others_mib = 10_000
    assert why_full(folder) == f"the disk of {folder} is full; free some space"


def test_a_start_on_a_full_disk_gives_up_a_portion(disk: Disk) -> None:
    reserve = Reserve(disk.place, 40)
    assert not reserve.release()
    reserve.adjust()
    disk.others_mib = 160
    assert reserve.release()
    assert reserve.size_now_mib == 24
