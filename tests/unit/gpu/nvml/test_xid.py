"""The table of Xids: what an application did never stops a GPU, what needs a reset always does."""

import pytest

from commonage.gpu.nvml import xid
from commonage.gpu.nvml.xid import Kind


@pytest.mark.parametrize("number", [13, 31, 43, 45, 94, 109, 63, 154, 999, 0])
def test_what_stops_no_device(number: int) -> None:
    assert not xid.is_fatal(number)
    assert f"Xid {number}" in xid.notice_of(number)


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 95, 119, 120, 140, 143, 158])
def test_what_needs_a_reset(number: int) -> None:
    assert xid.meaning_of(number).kind is Kind.RESET
    assert "nvidia-smi --gpu-reset -i 3" in xid.fault_of(number, 3)


def test_what_needs_a_reboot() -> None:
    assert "reboot the node" in xid.fault_of(79, 0)
    assert "power cables" in xid.fault_of(54, 0)


def test_what_is_not_known_is_said_to_be() -> None:
    assert "not known here" in xid.notice_of(999)


def test_every_entry_has_one_meaning() -> None:
    assert len(xid.MEANINGS) == sum(len(table) for table in xid._TABLE.values())
