"""`commonage bench gpu-shares`: what sharing this machine's cards costs. A part of `commonage bench gpu`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from commonage.domain.errors import CommonageError
from commonage.domain.fleet import Device
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.gpu_doctor import claimed, every_level, look
from commonage.server.gpu_probes import Places
from commonage.server.gpu_sharing import Sharing, rate_of
from commonage.server.settings_sources import Resolved
from commonage.server.termination import Termination

NO_CARD = 2


@click.command("gpu-shares")
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=10.0, show_default=True, help="For each figure.")
@as_json
@reads_settings
def gpu_shares(resolved: Resolved, seconds: float, as_json: bool) -> None:
    """Throughput of 2, 4 and 8 shares together against one workload alone, and of one beside a greedy neighbour.

    Nobody may use the cards meanwhile.

    \b
    Example:
      commonage bench gpu-shares --seconds 20
    """
    try:
        found = look(resolved.settings.gpus)
    except CommonageError as error:
        raise Failure(error.message) from None
    termination, whole = Termination(), [card for card in found.cards if card.parent_uuid is None]
    with termination.watched(), claimed(whole) as cards, termination.interruptible():
        measured = [_measure(card, seconds) for card in cards if not card.faults]
    for card in cards:
        for fault in card.faults:
            click.echo(f"card {card.label} is not measured: it {fault}", err=True)
    if not measured:
        click.echo(f"There is no real card here that can be shared, so nothing is measured. {found.said}", err=True)
        sys.exit(NO_CARD)
    click.echo(json.dumps(measured, indent=2) if as_json else "\n\n".join(_table(one) for one in measured))


def _measure(card: Device, seconds: float) -> dict[str, Any]:
    places = Places.here()
    sharing = Sharing(card, places, seconds)
    alone = sharing.alone()
    result: dict[str, Any] = {
        "card": f"{card.label}: {card.model}", "driver": card.driver, "alone": rate_of(alone), "error": alone["error"],
        "together": [], "beside": [], "left_out": [],
    }  # fmt: skip
    try:
        with every_level() as levels:
            for level in levels:
                why = level.available(card)
                if why:
                    result["left_out"].append({"level": level.isolation.value, "why": why})
                    continue
                click.echo(f"  card {card.label}, {level.isolation} …", err=True)
                result["together"] += [asdict(one) for one in sharing.together(level, result["alone"])]
                result["beside"].append(asdict(sharing.beside(level)))
    finally:
        places.close()
    return result


def _table(measured: dict[str, Any]) -> str:
    """For people: Markdown."""
    alone = f"{measured['alone']:.1f} kernels a second{': ' if measured['error'] else ''}{measured['error']}"
    lines = [
        f"Card {measured['card']}, driver {measured['driver']}: one workload alone does {alone}.",
        "",
        "| level | shares | together, of one alone | slowest | fastest | |",
        "|---|---|---|---|---|---|",
    ]
    for one in measured["together"]:
        rates = f"{one['slowest']:.1f}/s | {one['fastest']:.1f}/s"
        lines.append(f"| {one['level']} | {one['count']} | {one['of_one']:.0%} | {rates} | {one['error']} |")
    lines += ["", "| level | neighbour alone | beside a greedy one | the greedy one got | |", "|---|---|---|---|---|"]
    for one in measured["beside"]:
        lines.append(
            f"| {one['level']} | {one['alone']:.1f}/s | {one['meanwhile']:.1f}/s | {one['got_mib']} of "
            f"{one['share_mib']} MiB | {one['error']} |"
        )
    lines += ["", *(f"- {one['level']} was left out: {one['why']}" for one in measured["left_out"])]
    return "\n".join(lines).rstrip()
