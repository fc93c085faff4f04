"""Recording a node and replaying it gives the same node: on the fake library, in a process that loads it."""

import json
from pathlib import Path

import pytest
from tests.fakes.nvml.harness import build_library
from tests.fakes.nvml.make_records import FAKES, make

from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.nvml.record import as_json
from commonage.gpu.nvml.replayed import Replayed, read_record

pytestmark = pytest.mark.needs("gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.mark.parametrize("name", FAKES)
def test_a_record_is_the_node_again(library: Path, tmp_path: Path, name: str) -> None:
    make(tmp_path / "here.json", FAKES[name], library)
    record = read_record(tmp_path / "here.json")
    made = NvmlDevices(api=Replayed(record)).inventory()
    assert [as_json(device) for device in made] == record["devices"]
    assert record["driver"] == made[0].driver


def test_a_record_holds_values_errors_and_names_of_handles(library: Path, tmp_path: Path) -> None:
    make(tmp_path / "here.json", FAKES["fake-h100-mig"], library)
    calls = {
        (one["call"], json.dumps(one["args"])): one["answers"]
        for one in json.loads((tmp_path / "here.json").read_text())["calls"]
    }
    device, part = {"handle": "GPU 0"}, {"handle": "GPU 0/1"}
    assert calls["nvmlDeviceGetRetiredPagesPendingStatus", json.dumps([device])] == [{"error": 3}]
    assert calls["nvmlDeviceGetGpuInstanceId", json.dumps([part])] == [{"value": 2}]
    assert calls["nvmlDeviceGetMigDeviceHandleByIndex", json.dumps([device, 1])] == [{"value": part}]
