"""The position of a GPU: PCI, NUMA node, and the GPUs that it reaches by NVLink. Used by `inventory`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from commonage.gpu.nvml.library import Gpu

PCI_DEVICES = Path("/sys/bus/pci/devices")
_NODE_WORDS = 2  # of 64 bits: enough for 128 NUMA nodes


@dataclass(frozen=True, slots=True)
class Links:
    """Active NVLinks of a GPU: the number that leads to each PCI address, and to switches."""

    direct: Mapping[str, int]
    switched: int


def pci_of(gpu: Gpu) -> str:
    """Like `0000:3b:00.0`, as Linux writes it; empty if the driver does not report it."""
    info = gpu.ask("nvmlDeviceGetPciInfo_v3")
    return "" if info is None else _place(info)


def _place(info: Any) -> str:
    bus_id = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def numa_of(gpu: Gpu, pci: str) -> int | None:
    """The nearest NUMA node, from the driver or the system; None if unknown, or if there is only one node."""
    words = gpu.ask("nvmlDeviceGetMemoryAffinity", _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    if words is not None:
        bits = sum(int(word) << (64 * at) for at, word in enumerate(words))
        nodes = [at for at in range(64 * _NODE_WORDS) if bits >> at & 1]
        return nodes[0] if len(nodes) == 1 else None
    try:
        node = int((PCI_DEVICES / pci / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def links_of(gpu: Gpu) -> Links:
    direct: Counter[str] = Counter()
    switched = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not gpu.ask("nvmlDeviceGetNvLinkState", link):
                if link == 0 and gpu.ask("nvmlDeviceGetNvLinkState", link) is None:
                    break  # it has no links
                continue
            if gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched += 1
                continue
            remote = gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break  # it has no more links
            raise
        if remote is not None:
            direct[_place(remote)] += 1
    return Links(direct, switched)


def peers_of(uuid: str, links: Mapping[str, Links], places: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """The GPUs that `uuid` reaches, each with the number of links: direct, or through switches that both are on.

    `links` by uuid, `places` uuids by PCI address.
    """
    mine = links.get(uuid)
    if mine is None:
        return ()
    found = {places[place]: count for place, count in mine.direct.items() if place in places}
    for other, theirs in links.items():
        count = min(mine.switched, theirs.switched)
        if other != uuid and count:
            found[other] = found.get(other, 0) + count
    return tuple(sorted(found.items()))
