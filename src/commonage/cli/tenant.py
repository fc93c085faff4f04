"""`commonage tenant`: tenants with quotas and allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    from commonage.wire.tenants import AmountsOut, BoundsOut, TenantOut

_RESOURCES = ("gpu_milli", "vram_mib", "cpus_milli", "memory_mib")
_NAMES = {"gpu_milli": "GPUS", "vram_mib": "VRAM", "cpus_milli": "CPUS", "memory_mib": "MEMORY"}


@click.group
def tenant() -> None:
    """List tenants with quotas and allocations.

    \b
    Examples:
      commonage tenant ls
      commonage tenant show optics
    """


@tenant.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List your tenants with allocations, quotas and workloads. Admins see all tenants.

    \b
    Example:
      commonage tenant ls --json
    """
    with connect(server) as client:
        found = client.tenants()
    if as_json:
        output.print_json(found)
        return
    figures = [_NAMES[name] for name in _RESOURCES]
    numbers = ("WEIGHT", *figures, "RUNNING", "QUEUED")
    table = output.table("TENANT", "TITLE", *numbers, right=numbers)
    for one in found:
        allocated = [_of(one.allocated, one.nominal, name) for name in _RESOURCES]
        name = f"{one.name} (yours)" if one.member and len(found) > 1 else one.name
        table.add_row(
            output.text(name), output.text(one.title), f"{one.weight:g}", *allocated, str(one.running), str(one.waiting)
        )
    output.console().print(table)


@tenant.command("show")
@click.argument("name")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show a tenant: its quota, and what is allocated, borrowed and lent.

    \b
    Example:
      commonage tenant show optics
    """
    with connect(server) as client:
        found = client.tenants()
    one = next((one for one in found if one.name == name), None)
    if one is None:
        known = ", ".join(one.name for one in found)
        raise Failure(f"no tenant {name!r}, or you are not a member. Tenants: {known}", MISUSED)
    if as_json:
        output.print_json(one)
        return
    click.echo(f"{one.name}{f': {one.title}' if one.title else ''}")
    usage = f"recent usage {output.duration(one.debt_s)} of the whole cluster"
    click.echo(f"weight {one.weight:g}, {one.running} running, {one.waiting} queued, {usage}")
    if one.environments:
        click.echo(f"environments: {', '.join(one.environments)}")
    if one.sites:
        click.echo(f"sites: {', '.join(one.sites)}")
    output.console().print(_quota_table(one))


def _quota_table(one: TenantOut) -> object:
    columns = ("ALLOCATED", "QUOTA", "MAY BORROW", "BORROWED", "MAY LEND", "LENT", "PER USER")
    table = output.table("", *columns, right=columns)
    for name in _RESOURCES:
        own = getattr(one.nominal, name)
        table.add_row(
            _NAMES[name],
            _amount(name, getattr(one.allocated, name)),
            _bound(one.nominal, name, "no limit"),
            "" if own is None else _bound(one.borrowing, name, "all free"),
            "" if own is None else _amount(name, getattr(one.borrowed, name)),
            "" if own is None else _bound(one.lending, name, "all"),
            "" if own is None else _amount(name, getattr(one.lent, name)),
            _bound(one.per_user, name, "no limit"),
        )
    return table


def _of(allocated: AmountsOut, nominal: BoundsOut, name: str) -> str:
    """`2 of 4`; without a quota only what is allocated."""
    own = getattr(nominal, name)
    amount = _amount(name, getattr(allocated, name))
    return amount if own is None else f"{amount} of {_amount(name, own)}"


def _bound(bounds: BoundsOut, name: str, unbounded: str) -> str:
    bound = getattr(bounds, name)
    return unbounded if bound is None else _amount(name, bound)


def _amount(name: str, amount: int) -> str:
    if name.endswith("_milli"):
        return f"{amount / 1000:g}"
    return output.memory(amount) if amount else "0"
