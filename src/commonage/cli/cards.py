"""All that is known of a machine's cards, in a terminal: `commonage node show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commonage.wire.cards import DeviceOut, MeasuredOut
    from commonage.wire.platform import NodeOut


def print_node(node: NodeOut) -> None:
    """The machine, then each card."""
    screen = show.console()
    reason = f", {show.text(node.reason)}" if node.reason else ""
    screen.print(f"[bold]{show.text(node.name)}[/]  {show.state(node.state)}{reason}")
    screen.print(f"  site {show.text(node.site)}, engine {show.text(node.engine)}, {node.workloads} running")
    screen.print(
        f"  {show.cpus(node.free_cpus_milli)} of {show.cpus(node.cpus_milli)} cores and "
        f"{show.memory(node.free_memory_mib)} of {show.memory(node.memory_mib)} of memory free"
    )
    if node.labels:
        screen.print(f"  {show.text(', '.join(f'{name}={value}' for name, value in node.labels.items()))}")
    names = {card.uuid: card.label for card in node.devices}
    for card in node.devices:
        simulated = " (simulated)" if card.simulated else ""
        screen.print(f"\n[bold]GPU {card.label}[/]  {show.text(card.model)}{simulated}")
        for label, value in _facts(card, names):
            screen.print(f"  {label:<12} {value}")
    for note in node.notes:
        click.echo(f"Note: {note}")


def faults(node: NodeOut) -> list[str]:
    """What keeps its cards from new work."""
    return [f"GPU {card.label} takes no new work: it {fault}" for card in node.devices for fault in card.faults]


def _facts(card: DeviceOut, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Label and value, ready to print; what is not known is left out."""
    for fault in card.faults:
        yield "fault", f"[red]{show.text(fault)}[/]"
    for notice in card.notices:
        yield "notice", f"[yellow]{show.text(notice)}[/]"
    yield "uuid", show.text(card.uuid)
    yield (
        "memory",
        f"{show.memory(card.free_mib)} of {show.memory(card.memory_mib)} free"
        + ("" if card.used_mib is None else f", {show.memory(card.used_mib)} in use"),
    )
    if card.mig_profile:
        yield "MIG", f"{show.text(card.mig_profile)} of {show.text(card.parent_uuid or '')}"
    if card.slots:
        yield "slots", f"shared in {card.slots} equal parts"
    yield from _isolation(card)
    versions = [
        f"driver {card.driver}" if card.driver else "",
        f"CUDA {card.cuda}" if card.cuda else "",
        f"compute capability {card.compute_capability}" if card.compute_capability else "",
    ]
    if any(versions):
        yield "software", show.text(", ".join(version for version in versions if version))
    if card.pci:
        yield "place", f"PCI {show.text(card.pci)}" + ("" if card.numa is None else f", NUMA node {card.numa}")
    if card.peers:
        yield "NVLink", ", ".join(f"{one.links} to GPU {names.get(one.uuid, one.uuid)}" for one in card.peers)
    if card.measured is not None:
        yield from _measured(card, card.measured)


def _isolation(card: DeviceOut) -> Iterator[tuple[str, str]]:
    yield "isolation", f"[bold]{card.isolation}[/]"
    for level in card.unavailable:
        yield "", f"no {level.isolation}: {show.text(level.why)}"


def _measured(card: DeviceOut, last: MeasuredOut) -> Iterator[tuple[str, str]]:
    figures = [
        "" if card.utilisation is None else f"{card.utilisation:.0%} busy",
        "" if last.power_w is None else f"{last.power_w:.0f} W" + _of(last.power_limit_w, "W"),
        "" if last.temperature_c is None else f"{last.temperature_c:.0f} °C",
        "" if last.sm_clock_mhz is None else f"SM {last.sm_clock_mhz} MHz",
        "" if last.memory_clock_mhz is None else f"memory {last.memory_clock_mhz} MHz",
        f"slowed by {', '.join(last.throttle)}" if last.throttle else "",
    ]
    if any(figures):
        yield "measured", show.text(", ".join(figure for figure in figures if figure))
    if last.ecc_corrected is not None or last.ecc_uncorrected is not None:
        yield "ECC errors", f"{last.ecc_corrected or 0} corrected, {last.ecc_uncorrected or 0} not"
    if last.remapped_corrected or last.remapped_uncorrected:
        yield "remapped", f"{(last.remapped_corrected or 0) + (last.remapped_uncorrected or 0)} rows of memory"
    if last.xid is not None:
        yield "last Xid", str(last.xid)


def _of(limit: float | None, unit: str) -> str:
    return "" if limit is None else f" of {limit:.0f} {unit}"
