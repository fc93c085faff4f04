"""Reads the public trace "openb" of Alibaba (cluster-trace-gpu-v2023): nodes, and workloads without times.

The folder holds `openb_node_list_gpu_node.csv` and `openb_pod_list_NAME.csv`, as in the repositories of the trace and
of the FGD simulator. `commonage.replay.records` reads a list with its times.

The trace has shares of compute and no VRAM. A GPU gets the memory of its model, and a share takes the same part of the
memory, rounded down: VRAM never decides what fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device, Node, NodeReport, NodeState
from commonage.domain.requests import Request
from commonage.replay.records import request_of, rows_of

NODES: Final = "openb_node_list_gpu_node.csv"
LIST_PREFIX: Final = "openb_pod_list_"

DEVICE_MIB: Final = {
    "T4": 16 * 1024,
    "P100": 16 * 1024,
    "V100M16": 16 * 1024,
    "V100M32": 32 * 1024,
    "A10": 24 * 1024,
    "G2": 20 * 1000,  # the trace does not name G2 and G3; sizes as in the simulator
    "G3": 30 * 1000,
}
OTHER_DEVICE_MIB: Final = 16 * 1024


def folder_of(traces: Path) -> Path:
    """The folder with the files: `traces`, or `openb` in it. Raises InvalidInput."""
    if not traces.is_dir():
        raise InvalidInput(f"{traces} is not a folder; name the folder with {NODES}", field="traces")
    for folder in (traces, traces / "openb"):
        if (folder / NODES).is_file():
            return folder
    raise InvalidInput(f"{traces} has no {NODES}; name the folder of the openb trace", field="traces")


def lists_in(folder: Path) -> list[str]:
    """The names of the lists in the folder, `default` first."""
    names = sorted(path.stem.removeprefix(LIST_PREFIX) for path in folder.glob(f"{LIST_PREFIX}*.csv"))
    return sorted(names, key=lambda name: name != "default")


def read_nodes(folder: Path) -> list[Node]:
    """The nodes, by name. Raises InvalidInput with the file and the error."""
    nodes = rows_of(folder / NODES, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), _node)
    return sorted(nodes, key=lambda node: node.name)


def read_list(folder: Path, name: str) -> list[Request]:
    """The requests of a list, by name of workload. Raises InvalidInput for an invalid file or an unknown list."""
    path = folder / f"{LIST_PREFIX}{name}.csv"
    if not path.is_file():
        known = ", ".join(lists_in(folder)) or "none"
        raise InvalidInput(f"{folder} has no list {name!r}; lists: {known}", field="list")
    named = rows_of(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), _workload)
    return [request for _, request in sorted(named, key=lambda one: one[0])]


def _node(row: Mapping[str, str]) -> Node:
    name, model = row["sn"], row["model"]
    memory_mib = DEVICE_MIB.get(model, OTHER_DEVICE_MIB)
    devices = tuple(Device(f"{name}/{index}", index, model, memory_mib) for index in range(int(row["gpu"])))
    report = NodeReport(name, int(row["cpu_milli"]), int(row["memory_mib"]), devices)
    return Node(name, "openb", "replay", NodeState.READY, report, 0.0)


def _workload(row: Mapping[str, str]) -> tuple[str, Request]:
    return row["name"], request_of(row)
