"""Slots: what the setting means, and that a third of a GPU and a third of its memory are the same share."""

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device
from commonage.domain.requests import parse_gpus, part_of
from commonage.gpu.slots import Slots, parse_slots


def device(model: str = "NVIDIA A100-SXM4-40GB", parent: str | None = None, slots: int = 0) -> Device:
    return Device("GPU-1", 0, model, 36864, parent_uuid=parent, slots=slots)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("", Slots()),
        ("0", Slots()),
        ("3", Slots(otherwise=3)),
        ("A100=4, T4=2", Slots((("a100", 4), ("t4", 2)))),
        ("A100=4,2", Slots((("a100", 4),), 2)),
    ],
)
def test_parsing(text: str, slots: Slots) -> None:
    assert parse_slots(text) == slots


@pytest.mark.parametrize("text", ["three", "A100=", "=3", "65", "1000", "3,4", "A100=2,a100=3", "A100:3", "-1"])
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_slots(text)
    assert raised.value.field == "gpu_slots"


def test_the_longest_word_that_fits_counts() -> None:
    slots = parse_slots("A100=4,A100-SXM4-40=3,2")
    assert slots.of(device()) == 3
    assert slots.of(device("NVIDIA A100-PCIE-80GB")) == 4
    assert slots.of(device("Tesla T4")) == 2
    assert slots.of(device(parent="GPU-0")) == 0


@pytest.mark.parametrize(("fraction", "memory"), [("1/3", "12GiB"), ("2/3", "24GiB")])
def test_a_third_and_a_third_of_the_memory_are_the_same(fraction: str, memory: str) -> None:
    thirds = device(slots=3)
    by_fraction, by_memory = parse_gpus(fraction), parse_gpus(memory)
    assert by_fraction is not None
    assert by_memory is not None
    assert part_of(thirds, by_fraction) == part_of(thirds, by_memory) is not None
