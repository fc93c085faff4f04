"""The details of a node and its GPUs, for `commonage node show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commonage.wire.nodes import DeviceOut, MeasuredOut, NodeOut


def print_node(node: NodeOut) -> None:
    """Print the node, then each GPU."""
    screen = output.console()
    reason = f"  {output.text(output.messages(node.reasons))}" if node.reasons else ""
    screen.print(f"[bold]{output.text(node.name)}[/]  {output.state(node.state)}{reason}")
    screen.print(f"  site {output.text(node.site)}, engine {output.text(node.engine)}, {node.workloads} running")
    screen.print(
        f"  {output.cpus(node.free_cpus_milli)} of {output.cpus(node.cpus_milli)} cores and "
        f"{output.memory(node.free_memory_mib)} of {output.memory(node.memory_mib)} of memory free"
    )
    if node.labels:
        screen.print(f"  {output.text(', '.join(f'{name}={value}' for name, value in node.labels.items()))}")
    names = {device.uuid: device.label for device in node.devices}
    for device in node.devices:
        simulated = " (simulated)" if device.simulated else ""
        screen.print(f"\n[bold]GPU {device.label}[/]  {output.text(device.model)}{simulated}")
        for label, value in _facts(device, names):
            screen.print(f"  {label:<12} {value}")
    for note in node.notes:
        click.echo(f"Note: {note}")


def faults(node: NodeOut) -> list[str]:
    """The faults for which GPUs of the node take no workloads."""
    return [
        f"GPU {device.label} takes no workloads. {fault.message}" for device in node.devices for fault in device.faults
    ]


def _facts(device: DeviceOut, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Labels and values as markup, without unknown ones."""
    for fault in device.faults:
        yield "fault", f"[red]{output.text(fault.message)}[/]"
    for notice in device.notices:
        yield "notice", f"[yellow]{output.text(notice.message)}[/]"
    yield "uuid", output.text(device.uuid)
    yield (
        "memory",
        f"{output.memory(device.free_mib)} of {output.memory(device.memory_mib)} free"
        + ("" if device.used_mib is None else f", {output.memory(device.used_mib)} in use"),
    )
    if device.mig_profile:
        yield "MIG", f"{output.text(device.mig_profile)} of {output.text(device.parent_uuid or '')}"
    if device.slots:
        yield "slots", f"{device.slots} equal slots"
    yield from _isolation(device)
    versions = [
        f"driver {device.driver}" if device.driver else "",
        f"CUDA {device.cuda}" if device.cuda else "",
        f"compute capability {device.compute_capability}" if device.compute_capability else "",
    ]
    if any(versions):
        yield "software", output.text(", ".join(version for version in versions if version))
    if device.pci:
        yield "bus", f"PCI {output.text(device.pci)}" + ("" if device.numa is None else f", NUMA node {device.numa}")
    if device.peers:
        yield "NVLink", ", ".join(f"{one.links} to GPU {names.get(one.uuid, one.uuid)}" for one in device.peers)
    if device.measured is not None:
        yield from _measured(device, device.measured)


def _isolation(device: DeviceOut) -> Iterator[tuple[str, str]]:
    yield "isolation", f"[bold]{device.isolation}[/]"
    for level in device.unavailable:
        yield "", f"no {level.isolation}: {output.text(level.reason.message)}"


def _measured(device: DeviceOut, last: MeasuredOut) -> Iterator[tuple[str, str]]:
    figures = [
        "" if device.utilisation is None else f"{device.utilisation:.0%} busy",
        "" if last.power_w is None else f"{last.power_w:.0f} W" + _of(last.power_limit_w, "W"),
        "" if last.temperature_c is None else f"{last.temperature_c:.0f} °C",
        "" if last.sm_clock_mhz is None else f"SM {last.sm_clock_mhz} MHz",
        "" if last.memory_clock_mhz is None else f"memory {last.memory_clock_mhz} MHz",
        f"throttled by {', '.join(last.throttle)}" if last.throttle else "",
    ]
    if any(figures):
        yield "measured", output.text(", ".join(figure for figure in figures if figure))
    if last.ecc_corrected is not None or last.ecc_uncorrected is not None:
        yield "ECC errors", f"{last.ecc_corrected or 0} corrected, {last.ecc_uncorrected or 0} uncorrected"
    if last.remapped_corrected or last.remapped_uncorrected:
        yield "remapped", f"{(last.remapped_corrected or 0) + (last.remapped_uncorrected or 0)} rows of memory"
    if last.xid is not None:
        yield "last Xid", str(last.xid)


def _of(limit: float | None, unit: str) -> str:
    return "" if limit is None else f" of {limit:.0f} {unit}"
