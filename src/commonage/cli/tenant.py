"""`commonage tenant`: who shares the nodes, and what each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import MISUSED, Failure

if TYPE_CHECKING:
    from commonage.wire.tenants import AmountsOut, BoundsOut, TenantOut

_RESOURCES = ("gpu_milli", "vram_mib", "cpus_milli", "memory_mib")
_NAMES = {"gpu_milli": "GPUs", "vram_mib": "VRAM", "cpus_milli": "CPUs", "memory_mib": "Memory"}


@click.group
def tenant() -> None:
    """List who shares the nodes, with quotas and what each holds.

    \b
    Example:
      commonage tenant ls
      commonage tenant show optics
    """


@tenant.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List your tenants, for admins all: what each holds of what is its own, and what waits.

    \b
    Example:
      commonage tenant ls --json
    """
    with connect(server) as client:
        found = client.tenants()
    if as_json:
        show.print_json(found)
        return
    figures = [_NAMES[name] for name in _RESOURCES]
    numbers = ("Weight", *figures, "Running", "Waiting")
    made = show.table("Tenant", "Title", *numbers, right=numbers)
    for one in found:
        held = [_of(one.held, one.nominal, name) for name in _RESOURCES]
        name = f"{one.name} (yours)" if one.member and len(found) > 1 else one.name
        made.add_row(
            show.text(name), show.text(one.title), f"{one.weight:g}", *held, str(one.running), str(one.waiting)
        )
    show.console().print(made)


@tenant.command("show")
@click.argument("name")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show one tenant: its quota, what it holds, borrows and lends.

    \b
    Example:
      commonage tenant show optics
    """
    with connect(server) as client:
        found = client.tenants()
    one = next((one for one in found if one.name == name), None)
    if one is None:
        there = ", ".join(one.name for one in found)
        raise Failure(f"there is no tenant {name!r}, or it is not yours; there are: {there}", MISUSED)
    if as_json:
        show.print_json(one)
        return
    click.echo(f"{one.name}{f': {one.title}' if one.title else ''}")
    owes = f"used {show.duration(one.debt_s)} of the whole cluster lately"
    click.echo(f"weight {one.weight:g}, {one.running} running, {one.waiting} waiting, {owes}")
    if one.environments:
        click.echo(f"environments: {', '.join(one.environments)}")
    if one.sites:
        click.echo(f"sites: {', '.join(one.sites)}")
    show.console().print(_quota_table(one))


def _quota_table(one: TenantOut) -> object:
    columns = ("Holds", "Its own", "May borrow", "Borrows", "May lend", "Lends", "Each member")
    made = show.table("", *columns, right=columns)
    for name in _RESOURCES:
        own = getattr(one.nominal, name)
        made.add_row(
            _NAMES[name],
            _amount(name, getattr(one.held, name)),
            _bound(one.nominal, name, "no bound"),
            "" if own is None else _bound(one.borrowing, name, "all that is free"),
            "" if own is None else _amount(name, getattr(one.borrowed, name)),
            "" if own is None else _bound(one.lending, name, "all of it"),
            "" if own is None else _amount(name, getattr(one.lent, name)),
            _bound(one.per_user, name, "no bound"),
        )
    return made


def _of(held: AmountsOut, nominal: BoundsOut, name: str) -> str:
    """`2 of 4`, or what is held alone where there is no bound."""
    own = getattr(nominal, name)
    amount = _amount(name, getattr(held, name))
    return amount if own is None else f"{amount} of {_amount(name, own)}"


def _bound(bounds: BoundsOut, name: str, none: str) -> str:
    bound = getattr(bounds, name)
    return none if bound is None else _amount(name, bound)


def _amount(name: str, amount: int) -> str:
    if name.endswith("_milli"):
        return f"{amount / 1000:g}"
    return show.memory(amount) if amount else "0"
