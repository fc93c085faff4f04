"""Opens the GPUs of this node as `--gpus auto|nvml|amd|none|simulated:…` says, and describes them in a sentence.

Called once by bootstrap (`commonage up`) and by `commonage doctor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device
from commonage.domain.requests import format_memory
from commonage.gpu.amd import AmdDevices
from commonage.gpu.isolation.devices import IsolatedDevices, Sharing
from commonage.gpu.none import NoDevices
from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.simulated import SimulatedDevices, parse_simulated
from commonage.ports.clock import Clock
from commonage.ports.devices import Devices, DevicesUnavailable

AMD_DRIVER = Path("/dev/kfd")  # the compute device of AMD's driver


class Opened(NamedTuple):
    """The GPUs, and a sentence, for the log and for users, about which were found and which are simulated."""

    devices: Devices
    said: str


def check_wanted(wanted: str) -> str:
    """Returns `wanted` if `open_devices` accepts it. Raises InvalidInput; loads no driver."""
    kind = wanted.strip().lower()
    if kind not in ("auto", "nvml", "amd", "none"):
        if not kind.startswith("simulated"):
            raise InvalidInput(
                f"gpus {wanted[:60]!r} is not known; write auto, nvml, amd, none or simulated:2x24GiB",
                field="gpus",
                code="invalid-gpus",
            )
        parse_simulated(wanted)
    return wanted


def share_devices(wanted: str, sharing: Sharing, *, node_name: str, clock: Clock) -> Opened:
    """Like `open_devices`, for the server that allocates the GPUs: they are claimed, and their shares are enforced."""
    opened = open_devices(wanted, node_name=node_name, clock=clock, faults=sharing.folder / "faults.json")
    return Opened(IsolatedDevices(opened.devices, sharing), opened.said)


def open_devices(wanted: str, *, node_name: str, clock: Clock, faults: Path | None = None) -> Opened:
    """Open the requested GPUs; the caller closes them. `faults`: the file that remembers faults.

    `auto`: the real GPUs, NVIDIA's or else AMD's, and a simulated one if the node has no GPU. `nvml`, `amd`: those or
    DevicesUnavailable. `none`: no GPU. `simulated:2x24GiB`: these, also on a node that has real ones. Raises
    InvalidInput for others.
    """
    kind = check_wanted(wanted).strip().lower()
    if kind == "none":
        return Opened(NoDevices(), "No GPUs: they are switched off (--gpus none).")
    if kind.startswith("simulated"):
        devices = _simulated(wanted, node_name, clock)
        return Opened(devices, f"Simulated GPUs, nothing is computed on them: {describe(devices.inventory())}.")
    if kind == "nvml":
        return _nvidia(faults)
    if kind == "amd":
        return _amd()
    try:
        return _nvidia_or_amd(faults)
    except DevicesUnavailable as error:
        devices = _simulated("simulated", node_name, clock)
        return Opened(
            devices,
            "No real GPU can be used, so one is simulated and nothing is computed on it: "
            f"{describe(devices.inventory())}. Why: {error.message}.",
        )


def describe(devices: Sequence[Device]) -> str:
    """`2 x NVIDIA A100 (79.2 GiB), 1 x …`, followed by those that are faulty."""
    kinds = Counter((device.model, device.memory_mib) for device in devices)
    listed = ", ".join(f"{count} x {model} ({format_memory(mib)})" for (model, mib), count in kinds.items())
    faulty = [f"GPU {device.label} is faulty" for device in devices if device.faults]
    return "; ".join([listed or "none", *faulty])


def _simulated(wanted: str, node_name: str, clock: Clock) -> SimulatedDevices:
    return SimulatedDevices(parse_simulated(wanted), node_name=node_name, now=clock.now)


def _nvidia_or_amd(faults: Path | None) -> Opened:
    """Raises DevicesUnavailable; if AMD's driver is loaded, with that driver's problem."""
    try:
        return _nvidia(faults)
    except DevicesUnavailable:
        if not AMD_DRIVER.exists():
            raise
    return _amd()


def _nvidia(faults: Path | None) -> Opened:
    return _with_devices(NvmlDevices(faults=faults), "NVIDIA", "nvidia-smi", "NVML")


def _amd() -> Opened:
    return _with_devices(AmdDevices(), "AMD", "amd-smi list", "AMD SMI")


def _with_devices(devices: NvmlDevices | AmdDevices, vendor: str, command: str, by: str) -> Opened:
    """The devices if they list a GPU; otherwise closes them. Raises DevicesUnavailable."""
    try:
        found = devices.inventory()
        if not found:
            raise DevicesUnavailable(
                f"the {vendor} driver works but lists no GPU: check `{command}` and `lspci`, and that this "
                "container or virtual machine was given one",
                retryable=False,
            )
        return Opened(devices, f"GPUs found by {by} ({devices.versions}): {describe(found)}.")
    except DevicesUnavailable:
        devices.close()
        raise
