"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.nodes import Device, Isolation, NodeReport
from commonage.domain.reasons.devices import GpuNotReachable, NotSplit
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.link.messages import Report
from commonage.ports.devices import DeviceSample
from commonage.testing import factories

WORDS = st.text(max_size=20)
NUMBERS = st.integers(0, 2**40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.builds(Device), st.builds(DeviceSample, uuid=WORDS), st.builds(ProcessOwner))
def test_json_restores_the_value(device: Device, sample: DeviceSample, owner: ProcessOwner) -> None:
    report = Report(1, NodeReport("n", 1, 2, (device,)), samples=(sample,), owners=(owner,), warnings=(("a", "b"),))
    strange: list[str] = []

    def note(word: str) -> float:  # NaN and the like where a number is due; in a text they are words
        strange.append(word)
        return float(word)

    plain = json.loads(json.dumps(to_json(report)), parse_constant=note)
    if strange:
        with pytest.raises(Unreadable):
            from_json(Report, plain)
    else:
        assert from_json(Report, plain) == report


@given(st.builds(Measurement, attempt_id=WORDS, cpu_s=FLOATS, memory_mib=NUMBERS))
@example(
    factories.device(
        numa=1, peers=(("GPU-2", 4),), unavailable=((Isolation.MIG, NotSplit()),), faults=(GpuNotReachable(),)
    )
)
def test_json_restores_numbers_and_nested_tuples(value: object) -> None:
    assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory_mib": "many"}, r"Device\.memory_mib should be int, and is 'many'"),
        ({"memory_mib": True}, r"Device\.memory_mib should be int"),
        ({"memory_mib": 1.0}, r"Device\.memory_mib should be int"),
        ({"uuid": None}, r"Device\.uuid should be str"),
        (
            {"isolation": "strong"},
            r"Device\.isolation should be one of driver-limit, .*, accounted, cooperative, and is",
        ),
        ({"isolation": []}, r"Device\.isolation should be one of"),
        ({"peers": [["GPU-2", 1], ["GPU-3"]]}, r"Device\.peers\[1\] should have 2 parts, and has 1"),
        ({"peers": [["GPU-2", "x"]]}, r"Device\.peers\[0\]\[1\] should be int"),
        ({"faults": "lost"}, r"Device\.faults should be a list"),
        ({"colour": 1, "shape": 2}, r"Device has colour, shape, which is not known here"),
    ],
)
def test_refuses_wrong_types_with_their_path(change: dict[str, Any], words: str) -> None:
    plain = json.loads(json.dumps(to_json(factories.device()))) | change
    with pytest.raises(Unreadable, match=words):
        from_json(Device, plain)


def test_missing_field_takes_its_default_or_is_refused() -> None:
    assert from_json(Device, {"uuid": "GPU-1", "index": 0, "model": "A30", "memory_mib": 1}).faults == ()
    with pytest.raises(Unreadable, match="Device lacks index"):
        from_json(Device, {"uuid": "GPU-1"})
    with pytest.raises(Unreadable, match="should be an object"):
        from_json(Device, [])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True, "1"])
def test_refuses_numbers_that_are_not_finite(number: Any) -> None:
    with pytest.raises(Unreadable, match=r"cpu_s should be a number"):
        from_json(Measurement, {"attempt_id": "a", "cpu_s": number, "memory_mib": 1})


def test_type_without_json_form_is_a_programming_error() -> None:
    @dataclass
    class Odd:
        inside: object

    with pytest.raises(TypeError, match="does not cross"):
        to_json(Odd({1, 2}))
