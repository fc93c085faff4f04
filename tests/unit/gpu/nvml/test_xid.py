"""The table of Xids: what an application did never stops a GPU, what needs a reset always does."""

import pytest

from commonage.domain.reasons.devices import FatalXid, Remedy, XidReported
from commonage.gpu.nvml import xid


@pytest.mark.parametrize(
    ("number", "by_application"),
    [(13, True), (31, True), (43, True), (45, True), (94, True), (109, True), (63, False), (154, False), (999, False)],
)
def test_an_error_that_stops_no_device_is_a_notice(number: int, by_application: bool) -> None:
    assert not xid.is_fatal(number)
    assert xid.notice_of(number, 7.0) == XidReported(number=number, seen_at=7.0, by_application=by_application)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        *((number, Remedy.RESET) for number in (46, 48, 62, 64, 74, 95, 119, 120, 140, 143, 158)),
        (79, Remedy.REBOOT),
        (54, Remedy.POWER),
    ],
)
def test_a_fatal_error_names_its_remedy(number: int, remedy: Remedy) -> None:
    assert xid.is_fatal(number)
    assert xid.fault_of(number, 3) == FatalXid(number=number, index=3, remedy=remedy)
