"""How much of a device a request takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commonage.domain.nodes import Device, Share
from commonage.domain.requests import GpuRequest, Part, parse_gpus, part_of

DEVICE = Device("GPU-1", 0, "A100", 12 * 1024)
SLOTTED = replace(DEVICE, slots=3)
INSTANCE = Device("MIG-1", 0, "A100 1g.10gb", 9856, mig_profile="1g.10gb", parent_uuid="GPU-9", parent_memory_mib=81920)


def taken(device: Device, text: str) -> Part | None:
    request = parse_gpus(text)
    assert isinstance(request, GpuRequest)
    return part_of(device, request)


@pytest.mark.parametrize("text", ["1/3", "4GiB", "0.333", "0.1", "1GiB"])
def test_a_third_and_4_gib_of_a_device_with_three_slots_come_to_the_same(text: str) -> None:
    assert taken(SLOTTED, text) == Part(4096, 333)


@pytest.mark.parametrize(("text", "slots"), [("0.5", 2), ("5GiB", 2), ("8GiB", 2), ("0.9", 3), ("12GiB", 3)])
def test_more_than_a_slot_takes_whole_slots(text: str, slots: int) -> None:
    assert taken(SLOTTED, text) == Part(4096 * slots, 1000 * slots // 3)


def test_a_device_without_slots_gives_what_is_asked() -> None:
    assert taken(DEVICE, "6GiB") == Part(6144, 500)
    assert taken(DEVICE, "0.25") == Part(3072, 250)
    assert taken(DEVICE, "2") == Part(12288, 1000, whole=True)


@pytest.mark.parametrize("device", [DEVICE, SLOTTED, INSTANCE])
def test_more_than_the_device_has_never_fits(device: Device) -> None:
    assert taken(device, "13GiB") is None


def test_a_mig_instance_is_given_whole_to_parts_that_it_is_as_large_as() -> None:
    assert taken(INSTANCE, "1/8") == Part(9856, 1000, whole=True)
    assert taken(INSTANCE, "2GiB") == Part(9856, 1000, whole=True)
    assert taken(INSTANCE, "0.25") is None
    assert taken(INSTANCE, "1") is None


def test_a_device_that_does_not_tell_its_memory_gives_nothing() -> None:
    assert taken(replace(DEVICE, memory_mib=0), "1") is None


def test_a_part_of_a_device_is_called_by_device_and_place() -> None:
    assert (DEVICE.label, replace(INSTANCE, index=203).label) == ("0", "1:3")
    share = Share("MIG-1", 203, "A100", 1024, 1000, whole=True, device_memory_mib=1024)
    assert (share.label, replace(share, device_uuid="GPU-1", device_index=203).label) == ("1:3", "203")
