"""Nodes and GPUs as text: the tables of `node ls` and of `top`, and the details of `node show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.units import format_speed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from commonage.wire.nodes import DeviceOut, MeasuredOut, NodeOut, NodeUsageOut, UnattributedProcessOut


def node_table(nodes: Sequence[NodeOut]) -> Table:
    devices = ("GPU", "FREE VRAM", "USED VRAM", "BUSY")
    table = output.table("NODE", "STATE", "FREE CORES", "FREE MEMORY", *devices, "WORKLOADS", right=["WORKLOADS"])
    for node in nodes:
        cells = (
            output.text(output.node_label(node.site, node.name)),
            output.state(node.state),
            _free_cpus(node),
            _free_memory(node),
        )
        first, *others = [_device(device) for device in node.devices] or [("none", "", "", "")]
        table.add_row(*cells, *first, str(node.workloads))
        for other in others:
            table.add_row(*("",) * len(cells), *other, "")
    return table


def usage_table(nodes: Sequence[NodeOut]) -> Table:
    """Used and allocated resources of each node, of the total: the table of `top`."""
    right = ["DISK I/O", "NETWORK", "TEMP", "WORKLOADS"]
    columns = ("NODE", "STATE", "CPU USED/ALLOC/TOTAL", "MEMORY USED/ALLOC/TOTAL", "DISK USED")
    table = output.table(*columns, *right, right=right)
    for node in nodes:
        usage = node.usage if node.state != "lost" else None
        table.add_row(
            output.text(output.node_label(node.site, node.name)),
            output.state(node.state),
            f"{_used_cores(usage)} / {output.cpus(node.cpus_milli - node.free_cpus_milli)} / "
            f"{output.cpus(node.cpus_milli)}",
            f"{_used_memory(usage)} / {output.memory(node.memory_mib - node.free_memory_mib)} / "
            f"{output.memory(node.memory_mib)}",
            *(_rest(usage) if usage is not None else ("",) * 4),
            str(node.workloads),
        )
    return table


def _used_cores(usage: NodeUsageOut | None) -> str:
    return "?" if usage is None or usage.cpu_cores is None else f"{usage.cpu_cores:.1f}"


def _used_memory(usage: NodeUsageOut | None) -> str:
    return "?" if usage is None or usage.memory_mib is None else output.memory(usage.memory_mib)


def _rest(usage: NodeUsageOut) -> tuple[str, str, str, str]:
    disk = usage.disk_used_mib is not None and usage.disk_total_mib is not None
    return (
        f"{output.memory(usage.disk_used_mib or 0)} of {output.memory(usage.disk_total_mib or 0)}" if disk else "",
        _pair(usage.disk_read_bytes_per_s, "r", usage.disk_written_bytes_per_s, "w"),
        _pair(usage.network_received_bytes_per_s, "in", usage.network_sent_bytes_per_s, "out"),
        "" if usage.temperature_c is None else f"{usage.temperature_c:.0f} °C",
    )


def _pair(one: float | None, of_one: str, other: float | None, of_other: str) -> str:
    known = [(value, name) for value, name in ((one, of_one), (other, of_other)) if value is not None]
    return ", ".join(f"{format_speed(value)} {name}" for value, name in known)


def device_table(nodes: Sequence[NodeOut]) -> Table:
    """The GPUs of all nodes: used and allocated VRAM of the total."""
    table = output.table("GPU", "MODEL", "VRAM USED/ALLOC/TOTAL", "BUSY", "TEMP", right=["BUSY", "TEMP"])
    for node in nodes:
        for device in node.devices:
            model, _, _, busy = _device(device)
            used = "?" if device.used_mib is None else output.memory(device.used_mib)
            measured = device.measured.temperature_c if device.measured is not None else None
            table.add_row(
                output.text(f"{output.node_label(node.site, node.name)}/{device.label}"),
                model.partition(": ")[2],
                f"{used} / {output.memory(device.memory_mib - device.free_mib)} / {output.memory(device.memory_mib)}",
                busy,
                "" if measured is None else f"{measured:.0f} °C",
            )
    return table


def _free_cpus(node: NodeOut) -> str:
    return f"{output.cpus(node.free_cpus_milli)} of {output.cpus(node.cpus_milli)}"


def _free_memory(node: NodeOut) -> str:
    return f"{output.memory(node.free_memory_mib)} of {output.memory(node.memory_mib)}"


def node_notes(nodes: Sequence[NodeOut]) -> list[str]:
    reasons = [
        f"{output.node_label(node.site, node.name)}: {output.messages(node.reasons)}" for node in nodes if node.reasons
    ]
    unattributed = [
        f"{output.node_label(node.site, node.name)}, GPU {device.label}: {_process_text(process)}"
        for node in nodes
        for device in node.devices
        for process in device.unattributed
    ]
    return list(dict.fromkeys([*reasons, *unattributed, *(note.message for node in nodes for note in node.notes)]))


def _process_text(process: UnattributedProcessOut) -> str:
    name = output.text(process.name) or "a process"
    pid = "" if process.pid is None else f" (process {process.pid})"
    vram = "VRAM" if process.memory_mib is None else f"{output.memory(process.memory_mib)} of VRAM"
    return f"{name}{pid} uses {vram}, and no workload started it"


def _device(device: DeviceOut) -> tuple[str, str, str, str]:
    simulated = " (simulated)" if device.simulated and "simulated" not in device.model.lower() else ""
    faults = f" [red]{output.text(output.messages(device.faults))}[/]" if device.faults else ""
    return (
        f"{device.label}: {output.text(device.model)}{simulated}{faults}",
        _free_vram(device),
        "" if device.used_mib is None else output.memory(device.used_mib),
        "" if device.utilisation is None else f"{device.utilisation:.0%}",
    )


def _free_vram(device: DeviceOut) -> str:
    return f"{output.memory(device.free_mib)} of {output.memory(device.memory_mib)}"


def print_node(node: NodeOut) -> None:
    screen = output.console()
    reason = f"  {output.text(output.messages(node.reasons))}" if node.reasons else ""
    screen.print(f"[bold]{output.text(output.node_label(node.site, node.name))}[/]  {output.state(node.state)}{reason}")
    screen.print(f"  site {output.text(node.site)}, engine {output.text(node.engine)}, {node.workloads} running")
    screen.print(f"  {_free_cpus(node)} cores and {_free_memory(node)} of memory free")
    if node.usage is not None and node.state != "lost":
        parts = [f"{_used_cores(node.usage)} cores and {_used_memory(node.usage)} of memory", *_rest(node.usage)[1:]]
        screen.print(f"  used: {', '.join(part for part in parts if part)}")
    if node.labels:
        screen.print(f"  {output.text(', '.join(f'{name}={value}' for name, value in node.labels.items()))}")
    names = {device.uuid: device.label for device in node.devices}
    for device in node.devices:
        simulated = " (simulated)" if device.simulated else ""
        screen.print(f"\n[bold]GPU {device.label}[/]  {output.text(device.model)}{simulated}")
        for label, value in _facts(device, names):
            if value:
                screen.print(f"  {label:<12} {value}")
    for note in node.notes:
        click.echo(f"Note: {note.message}")


def faults(node: NodeOut) -> list[str]:
    return [
        f"GPU {device.label} takes no workloads. {fault.message}" for device in node.devices for fault in device.faults
    ]


def _facts(device: DeviceOut, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Labels and values as markup; the value is empty if it is unknown."""
    for fault in device.faults:
        yield "fault", f"[red]{output.text(fault.message)}[/]"
    for notice in device.notices:
        yield "notice", f"[yellow]{output.text(notice.message)}[/]"
    yield "uuid", output.text(device.uuid)
    used = "" if device.used_mib is None else f", {output.memory(device.used_mib)} in use"
    yield "memory", f"{_free_vram(device)} free{used}"
    if device.mig_profile:
        yield "MIG", f"{output.text(device.mig_profile)} of {output.text(device.parent_uuid or '')}"
    if device.slots:
        yield "slots", f"{device.slots} equal slots"
    yield "isolation", f"[bold]{output.isolation(device)}[/]"
    for level in device.unavailable:
        yield "", f"no {level.isolation}: {output.text(level.reason.message)}"
    versions = [
        f"driver {device.driver}" if device.driver else "",
        f"CUDA {device.cuda}" if device.cuda else "",
        f"compute capability {device.compute_capability}" if device.compute_capability else "",
    ]
    yield "software", _listed(versions)
    if device.pci:
        yield "bus", f"PCI {output.text(device.pci)}" + ("" if device.numa is None else f", NUMA node {device.numa}")
    if device.peers:
        yield "NVLink", ", ".join(f"{peer.links} to GPU {names.get(peer.uuid, peer.uuid)}" for peer in device.peers)
    if device.measured is not None:
        yield from _measured(device, device.measured)


def _measured(device: DeviceOut, last: MeasuredOut) -> Iterator[tuple[str, str]]:
    limit = "" if last.power_limit_w is None else f" of {last.power_limit_w:.0f} W"
    figures = [
        "" if device.utilisation is None else f"{device.utilisation:.0%} busy",
        "" if last.power_w is None else f"{last.power_w:.0f} W{limit}",
        "" if last.temperature_c is None else f"{last.temperature_c:.0f} °C",
        "" if last.sm_clock_mhz is None else f"SM {last.sm_clock_mhz} MHz",
        "" if last.memory_clock_mhz is None else f"memory {last.memory_clock_mhz} MHz",
        f"throttled by {', '.join(last.throttle)}" if last.throttle else "",
    ]
    yield "measured", _listed(figures)
    if last.ecc_corrected is not None or last.ecc_uncorrected is not None:
        yield "ECC errors", f"{last.ecc_corrected or 0} corrected, {last.ecc_uncorrected or 0} uncorrected"
    if last.remapped_corrected or last.remapped_uncorrected:
        yield "remapped", f"{(last.remapped_corrected or 0) + (last.remapped_uncorrected or 0)} rows of memory"
    if last.xid is not None:
        yield "last Xid", str(last.xid)


def _listed(parts: Sequence[str]) -> str:
    return output.text(", ".join(part for part in parts if part))
