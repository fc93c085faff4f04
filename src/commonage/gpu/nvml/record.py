"""Records a node's answers to every NVML call that Commonage makes, so that they can be replayed elsewhere.

`commonage doctor gpu --record FILE` calls `record`; `replayed` reads the file. A record of a real GPU is worth more
than any fake: add it to tests/data/nvml, and every test run replays it. It holds uuids and process numbers, no names of
people and no data of computations.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pynvml

from commonage import __version__
from commonage.domain.codec import to_json
from commonage.domain.nodes import Device
from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.nvml.library import key_of

FORMAT = 1
_BESIDES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("nvmlDeviceGetSupportedEventTypes", ()),
    ("nvmlDeviceGetMaxMigDeviceCount", ()),
    ("nvmlDeviceGetMaxClockInfo", (pynvml.NVML_CLOCK_SM,)),
    ("nvmlDeviceGetMaxClockInfo", (pynvml.NVML_CLOCK_MEM,)),
    ("nvmlDeviceGetPowerManagementLimitConstraints", ()),
    ("nvmlDeviceGetRetiredPages", (pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,)),
    ("nvmlDeviceGetTotalEccErrors", (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC)),
    ("nvmlDeviceGetNumaNodeId", ()),
)
"""Calls that Commonage does not make, but whose answers help to understand a GPU that we do not have."""


class Recorder:
    """Replaces pynvml: calls it, and keeps its answers."""

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api
        self._names: dict[Any, str] = {}
        self.calls: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        return self._recorded(name, found) if name.startswith("nvml") and callable(found) else found

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            asked = [self.plain(arg) for arg in args]
            try:
                answer = function(*args)
            except pynvml.NVMLError as error:
                self._keep(name, asked, {"error": error.value})
                raise
            self._name(name, asked, answer)
            self._keep(name, asked, {"value": self.plain(answer)})
            return answer

        return call

    def _keep(self, name: str, asked: list[Any], answer: dict[str, Any]) -> None:
        kept = self.calls.setdefault(key_for(name, asked), {"call": name, "args": asked, "answers": []})["answers"]
        if not kept or kept[-1] != answer:
            kept.append(answer)

    def _name(self, name: str, asked: list[Any], answer: Any) -> None:
        """Handles are addresses, which differ each time: they are named by the call that returns them."""
        if isinstance(answer, ctypes._Pointer):
            of = "".join(str(arg["handle"]) + "/" if isinstance(arg, dict) else str(arg) for arg in asked)
            kind = {"nvmlDeviceGetHandleByIndex": "GPU ", "nvmlEventSetCreate": "events"}.get(name, "")
            self._names.setdefault(key_of(answer), f"{kind}{of}")

    def plain(self, value: Any) -> Any:
        """The value as JSON; structures as {"fields": …}, handles as {"handle": name}."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, ctypes._Pointer):
            return {"handle": self._names.get(key_of(value), "unknown")}
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return {"fields": {one[0]: self.plain(getattr(value, one[0])) for one in value._fields_}}
        if isinstance(value, list | tuple | ctypes.Array):
            return [self.plain(one) for one in value]
        if isinstance(value, ctypes._SimpleCData):
            return self.plain(value.value)
        return {"fields": {name: self.plain(one) for name, one in vars(value).items()}}


def key_for(name: str, asked: list[Any]) -> str:
    """The key of a call in the record; the same for equal arguments."""
    return f"{name} {json.dumps(asked, sort_keys=True)}"


def record(path: Path, *, source: str = "NVML", api: Any = pynvml) -> Mapping[str, Any]:
    """Call everything twice (once for properties, once for measurements) and write it to `path`.

    `source` is "NVML" for real GPUs. Returns the record. Raises DevicesUnavailable, OSError.
    """
    recorder = Recorder(api)
    devices = NvmlDevices(api=recorder)
    try:
        found = devices.inventory()
        devices.measure()
    finally:
        devices.close()
    _ask_besides(recorder)
    written = {
        "format": FORMAT,
        "source": source,
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commonage": __version__,
        "nvidia-ml-py": version("nvidia-ml-py"),
        "driver": found[0].driver if found else "",
        "devices": [as_json(device) for device in found],
        "calls": list(recorder.calls.values()),
    }
    path.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    return written


def as_json(device: Device) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(to_json(device)))
    return plain


def _ask_besides(recorder: Recorder) -> None:
    try:
        recorder.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        handles = [recorder.nvmlDeviceGetHandleByIndex(index) for index in range(recorder.nvmlDeviceGetCount())]
        for name, args in _BESIDES:
            for handle in handles:
                _try(getattr(recorder, name), handle, *args)
        for one in handles:
            for other in handles:
                if one is not other:
                    _try(recorder.nvmlDeviceGetTopologyCommonAncestor, one, other)
    except pynvml.NVMLError:
        return  # a lost GPU gives no more data; the error itself is recorded
    finally:
        _try(recorder.nvmlShutdown)


def _try(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except pynvml.NVMLError:
        return  # the error is recorded
