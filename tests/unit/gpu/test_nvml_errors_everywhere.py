"""Whatever NVML answers to any of its calls: every GPU stays listed, and nothing but DevicesUnavailable is raised."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from commonage.domain.nodes import Device
from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.nvml.replayed import Replayed, read_record
from commonage.ports.devices import DevicesUnavailable

FOLDER = Path(__file__).parents[2] / "data" / "nvml"
RECORDS = {name: read_record(FOLDER / f"{name}.json") for name in ("fake-h100-pair", "fake-h100-mig")}
CALLS = sorted({one["call"] for record in RECORDS.values() for one in record["calls"]})
CODES = (1, 2, 3, 4, 6, 10, 13, 15, 18, 999)


class Failing(Replayed):
    """One call answers with an error, of one GPU or of all, from the moment `fails` is set."""

    def __init__(self, record: Any, call: str, code: int, gpu: str) -> None:
        super().__init__(record)
        self.call, self.code, self.gpu, self.fails = call, code, gpu, False

    def _answer(self, name: str, *args: Any) -> Any:
        about = str(args[0]) if args else ""
        if self.fails and name == self.call and about.startswith(self.gpu):
            raise pynvml.NVMLError(self.code)
        return super()._answer(name, *args)


def gpus(devices: Sequence[Device]) -> set[str]:
    return {one.parent_uuid or one.uuid for one in devices}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_in_the_middle_loses_no_gpu(call: str, name: str) -> None:
    for code in CODES:
        for gpu in ("GPU 0", ""):
            api = Failing(RECORDS[name], call, code, gpu)
            devices = NvmlDevices(api=api)
            before = devices.inventory()
            api.fails = True
            devices.measure()
            assert gpus(devices.inventory()) == gpus(before), (call, code)
            api.fails = False
            assert devices.inventory() == before, (call, code)


@pytest.mark.parametrize("call", CALLS)
def test_an_error_from_the_beginning_is_said(call: str) -> None:
    for code in CODES:
        api = Failing(RECORDS["fake-h100-pair"], call, code, "")
        api.fails = True
        try:
            devices = NvmlDevices(api=api)
            devices.inventory()
            devices.measure()
            devices.close()
        except DevicesUnavailable as error:
            assert len(error.message) > 20
