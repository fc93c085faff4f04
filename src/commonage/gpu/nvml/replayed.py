"""Answers NVML calls from a record, on a node without the GPU. Used by tests, and to analyse a fault report.

`NvmlDevices(api=Replayed(read_record(path)))` then behaves as on the node where `record` ran.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from commonage.gpu.nvml.record import FORMAT, key_for


def read_record(path: Path) -> Mapping[str, Any]:
    """Read a record. Raises ValueError for a file that is not a record, or has a newer format."""
    read = json.loads(path.read_text())
    if not isinstance(read, dict) or read.get("format") != FORMAT or "calls" not in read:
        raise ValueError(f"{path} is no record that this version reads; make it with `commonage doctor gpu --record`")
    return read


class Replayed:
    """Replaces pynvml. Each call gives its recorded answers in turn, then repeats the last of them.

    A call that was not recorded is not supported.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._answers = {key_for(one["call"], one["args"]): list(one["answers"]) for one in record["calls"]}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *args: self._answer(name, *args)

    def _answer(self, name: str, *args: Any) -> Any:
        answers = self._answers.get(key_for(name, [_asked(arg) for arg in args]))
        if not answers:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "error" in answer:
            raise pynvml.NVMLError(answer["error"])
        return _lively(answer["value"])


class Handle(str):
    __slots__ = ()


def _asked(arg: Any) -> Any:
    if isinstance(arg, Handle):
        return {"handle": str(arg)}
    return [_asked(one) for one in arg] if isinstance(arg, list | tuple) else arg


def _lively(value: Any) -> Any:
    """Convert JSON to the values that pynvml returns: objects with fields, handles."""
    if isinstance(value, list):
        return [_lively(one) for one in value]
    if isinstance(value, dict):
        if "handle" in value:
            return Handle(value["handle"])
        return SimpleNamespace(**{name: _lively(one) for name, one in value["fields"].items()})
    return value
