"""Every record of what GPUs answered is replayed: the code makes the same devices of it, and can measure them.

How to add a record of a real GPU: tests/data/nvml/README.md.
"""

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.nvml.record import FORMAT, as_json
from commonage.gpu.nvml.replayed import Replayed, read_record

RECORDS = sorted((Path(__file__).parents[2] / "data" / "nvml").glob("*.json"))


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> Any:
    return read_record(request.param)


def test_there_are_records() -> None:
    assert {"fake-h100-pair", "fake-h100-mig", "fake-geforce"} <= {path.stem for path in RECORDS}


def test_a_record_says_where_it_is_from(record: Any) -> None:
    assert record["source"] in ("fake", "NVML")
    assert record["nvidia-ml-py"]
    assert record["calls"]


def test_the_same_devices_are_made_of_it(record: Any) -> None:
    made = [as_json(device) for device in NvmlDevices(api=Replayed(record)).inventory()]
    for device, recorded in zip(made, record["devices"], strict=True):
        if device["numa"] is None:  # the driver did not tell; there, the system did
            assert device == {**recorded, "numa": None}
        else:
            assert device == recorded


def test_its_healthy_devices_are_measured(record: Any) -> None:
    devices = NvmlDevices(api=Replayed(record))
    gpus = {gpu.uuid: gpu for gpu in devices.inventory()}
    samples = {sample.uuid: sample for sample in devices.measure()}
    assert {uuid for uuid, gpu in gpus.items() if not gpu.faults} <= set(samples)
    assert all(0 <= (one.memory_used_mib or 0) <= gpus[uuid].memory_mib for uuid, one in samples.items())


def test_what_was_not_recorded_is_not_supported(record: Any) -> None:
    with pytest.raises(pynvml.NVMLError) as raised:
        Replayed(record).nvmlDeviceGetFanSpeed("GPU 0")
    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("text", ["[]", '{"format": 99, "calls": []}', json.dumps({"format": FORMAT})])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(ValueError, match="no record that this version reads"):
        read_record(tmp_path / "some.json")
