"""Memory of a GPU's Xids: for how long, and the signs that a fault is over."""

from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.reasons.devices import XidReported
from commonage.gpu.device_faults import DeviceFaults, ResetMarkers, boot_id

MARKERS = ResetMarkers("boot-1", "615.10", energy_mj=5000, recovery=0)


class Faults(DeviceFaults):
    """With a clock that stops until it is set."""

    def __init__(self, path: Path | None = None) -> None:
        self.at = 1000.0
        super().__init__(path, lambda: self.at)


def stopped(faults: DeviceFaults, markers: ResetMarkers = MARKERS) -> bool:
    return bool(faults.faults("GPU-1", 0, markers))


def test_a_notice_is_shown_for_an_hour() -> None:
    faults = Faults()
    faults.note_xid("GPU-1", 31, MARKERS)
    faults.at += 3599
    assert faults.notices("GPU-1") == (XidReported(number=31, seen_at=1000.0, by_application=True),)
    faults.at += 2
    assert faults.notices("GPU-1") == ()
    assert faults.last == {"GPU-1": 31}


@pytest.mark.parametrize(
    ("later", "over"),
    [
        (MARKERS, False),
        (replace(MARKERS, energy_mj=9000), False),
        (replace(MARKERS, energy_mj=None), False),
        (replace(MARKERS, driver=""), False),
        (replace(MARKERS, energy_mj=10), True),
        (replace(MARKERS, boot="boot-2"), True),
        (replace(MARKERS, driver="620.01"), True),
    ],
)
def test_a_new_life_ends_a_fault(later: ResetMarkers, over: bool) -> None:
    faults = Faults()
    faults.note_xid("GPU-1", 95, MARKERS)
    assert stopped(faults, later) is not over


def test_what_was_not_known_of_the_life_before_ends_nothing() -> None:
    faults = Faults()
    faults.note_xid("GPU-1", 79, ResetMarkers("", ""))  # as of a GPU that has disappeared since
    assert stopped(faults)


def test_a_driver_that_asked_says_when_it_was_done() -> None:
    faults = Faults()
    faults.note_xid("GPU-1", 119, MARKERS)
    assert stopped(faults)  # the driver was not asked yet, so the missing request means nothing
    assert stopped(faults, replace(MARKERS, recovery=1))
    assert not stopped(faults)


def test_a_contained_error_is_no_fault_whichever_message_comes_first() -> None:
    faults = Faults()
    faults.note_xid("GPU-1", 48, MARKERS)
    assert stopped(faults)
    faults.note_xid("GPU-1", 94, MARKERS)
    assert not stopped(faults)
    faults.note_xid("GPU-1", 48, MARKERS)
    assert not stopped(faults)
    faults.at += 60
    faults.note_xid("GPU-1", 48, MARKERS)
    assert stopped(faults)


def test_faults_outlive_the_server_and_end_with_an_admins_word(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "faults.json"
    Faults(path).note_xid("GPU-1", 79, MARKERS)
    later = Faults(path)
    assert stopped(later)
    later.forget("GPU-2")
    assert stopped(later)
    later.forget(None)
    assert not stopped(later)
    assert not stopped(Faults(path))


def test_a_file_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    faults = Faults(tmp_path / "file" / "faults.json")
    faults.note_xid("GPU-1", 79, MARKERS)
    assert stopped(faults)


def test_the_same_message_again_is_one_fault() -> None:
    faults = Faults()
    for _ in range(100):
        faults.note_xid("GPU-1", 79, MARKERS)
    assert len(faults.faults("GPU-1", 0, MARKERS)) == 1


def test_boots_are_told_apart_where_the_system_does(tmp_path: Path) -> None:
    assert boot_id(tmp_path / "none") == ""
    assert boot_id()
