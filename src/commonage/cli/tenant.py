"""`commonage tenant`, `quota` and `usage`: quotas, allocations, allocated resources over time with their cost."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.app import LazyGroup
from commonage.cli.connection import prints
from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.tenants import BoundsOut, QuotaOut, TenantOut
    from commonage.wire.usage import UsageOut

_RESOURCES = {"gpu_milli": "GPUS", "vram_mib": "VRAM", "cpus_milli": "CPUS", "memory_mib": "MEMORY"}
_AGO = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S")


_OFFBOARDING = {
    "rename": "commonage.cli.user:rename_tenant",
    "remove": "commonage.cli.user:remove_tenant",
    "release": "commonage.cli.user:release_tenant",
}


@click.group(cls=LazyGroup, lazy=_OFFBOARDING)
def tenant() -> None:
    """List tenants with quotas and allocations; rename and remove them.

    \b
    Examples:
      commonage tenant ls
      commonage tenant show optics
      commonage tenant rename optics photonics
    """


def _print_tenants(tenants: Sequence[TenantOut]) -> None:
    numbers = ("WEIGHT", *_RESOURCES.values(), "RUNNING", "QUEUED")
    table = output.table("TENANT", "TITLE", *numbers, right=numbers)
    for each in tenants:
        name = f"{each.name} (yours)" if each.member and len(tenants) > 1 else each.name
        table.add_row(
            output.text(name),
            output.text(each.title),
            f"{each.weight:g}",
            *(_allocated(each, resource) for resource in _RESOURCES),
            str(each.running),
            str(each.waiting),
        )
    output.console().print(table)


@tenant.command("ls")
@prints(_print_tenants)
def list_tenants(client: Client) -> Sequence[TenantOut]:
    """List your tenants with allocations, quotas and workloads. Admins see all tenants.

    \b
    Example:
      commonage tenant ls --json
    """
    return client.tenants()


def _print_tenant(tenant: TenantOut) -> None:
    click.echo(f"{tenant.name}{f': {tenant.title}' if tenant.title else ''}")
    usage = f"recent usage {output.duration(tenant.debt_s)} of the whole cluster"
    click.echo(f"weight {tenant.weight:g}, {tenant.running} running, {tenant.waiting} queued, {usage}")
    if tenant.environments:
        click.echo(f"environments: {', '.join(tenant.environments)}")
    if tenant.sites:
        click.echo(f"sites: {', '.join(tenant.sites)}")
    if tenant.site_policy:
        click.echo(f"site policy: {tenant.site_policy}")
    columns = ("ALLOCATED", "QUOTA", "MAY BORROW", "BORROWED", "MAY LEND", "LENT", "PER USER")
    table = output.table("", *columns, right=columns)
    for name, head in _RESOURCES.items():
        with_quota = (
            _bound(tenant.borrowing, name, "all free"),
            _amount(name, getattr(tenant.borrowed, name)),
            _bound(tenant.lending, name, "all"),
            _amount(name, getattr(tenant.lent, name)),
        )
        table.add_row(
            head,
            _amount(name, getattr(tenant.allocated, name)),
            _bound(tenant.nominal, name, "no limit"),
            *(("",) * 4 if getattr(tenant.nominal, name) is None else with_quota),
            _bound(tenant.per_user, name, "no limit"),
        )
    output.console().print(table)
    for quota in tenant.quotas:
        click.echo(quota.message)


def _print_quotas(quotas: Sequence[QuotaOut]) -> None:
    if not quotas:
        click.echo("No quota applies to you.", err=True)
        return
    table = output.table(
        "TENANT", "SCOPE", "RESOURCE", "USED", "LIMIT", "LEFT", "RESETS", right=("USED", "LIMIT", "LEFT")
    )
    for each in quotas:
        amounts = (_quantity(each.resource, amount) for amount in (each.used, each.limit, each.remains))
        scope = each.scope if each.scope == "tenant" else f"{each.scope} {each.name}"
        resets = output.clock(each.resets_at) if each.resets_at is not None else ""
        table.add_row(output.text(each.tenant), output.text(scope), each.resource, *amounts, resets)
    output.console().print(table)


@click.command("quota")
@click.option("--tenant", metavar="NAME", help="Only of this tenant.")
@click.option("--user", metavar="NAME", help="Quotas of this user. For admins.")
@prints(_print_quotas)
def quota(client: Client, tenant: str | None, user: str | None) -> Sequence[QuotaOut]:
    """Show your quotas: used, limit, remaining, and when GPU-hours reset.

    \b
    Examples:
      commonage quota
      commonage quota --tenant optics --user ann
    """
    return client.quotas(tenant=tenant, user=user)


@tenant.command("show")
@click.argument("name")
@prints(_print_tenant)
def show_tenant(client: Client, name: str) -> TenantOut:
    """Show a tenant: its quota, and what is allocated, borrowed and lent.

    \b
    Example:
      commonage tenant show optics
    """
    tenants = client.tenants()
    for each in tenants:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in tenants)
    raise Failure(f"no tenant {name!r}, or you are not a member. Tenants: {known}", MISUSED)


def _allocated(tenant: TenantOut, name: str) -> str:
    """`2 of 4`; without a quota only what is allocated."""
    quota = getattr(tenant.nominal, name)
    amount = _amount(name, getattr(tenant.allocated, name))
    return amount if quota is None else f"{amount} of {_amount(name, quota)}"


def _bound(bounds: BoundsOut, name: str, unbounded: str) -> str:
    bound = getattr(bounds, name)
    return unbounded if bound is None else _amount(name, bound)


def _amount(name: str, amount: int) -> str:
    if name.endswith("_milli"):
        return output.cpus(amount)
    return output.memory(amount) if amount else "0"


def _quantity(resource: str, amount: int) -> str:
    if resource in ("cpu", "gpu"):
        return output.cpus(amount)
    if resource == "gpu-hours":
        return f"{hours_text(amount / 3600)} h"
    return str(amount) if resource in ("running", "queued") else (output.memory(amount) if amount else "0")


class Instant(click.ParamType[float]):
    """A date (2026-11-01, optionally with a time), or an age (7d, 12h), as unix seconds."""

    name = "instant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        ago = _AGO.fullmatch(text)
        if ago is not None:
            return time.time() - int(ago[1]) * _SECONDS[ago[2]]
        for form in _FORMATS:
            try:
                return time.mktime(time.strptime(text, form))
            except (ValueError, OverflowError):
                continue
        self.fail(f"{text!r} is not a time. Write 7d, 12h, 2026-11-01 or 2026-11-01T14:30.", param, ctx)


def _print_usage(usage: UsageOut) -> None:
    if not usage.items:
        click.echo("No usage in this time.", err=True)
        return
    priced = any(row.cost for row in usage.items)
    figures = ["WORKLOADS", "GPU GiB h", "GPU h", "CORE h", "MEMORY GiB h", *(["COST"] if priced else [])]
    table = output.table(usage.by.upper(), *figures, right=figures)
    for row in usage.items:
        cost = [f"{row.cost:.2f} {usage.currency}".strip()] if priced else []
        amounts = (row.gpu_gib_h, row.gpu_h, row.cpu_h, row.memory_gib_h)
        table.add_row(output.text(row.subject), str(row.workloads), *(hours_text(amount) for amount in amounts), *cost)
    output.console().print(table)


@click.command("usage")
@click.option(
    "--since",
    type=Instant(),
    default="30d",
    show_default=True,
    metavar="WHEN",
    help="Start: an age like 7d, or a date like 2026-11-01.",
)
@click.option("--until", type=Instant(), metavar="WHEN", help="End, in the same form.  [default: now]")
@click.option(
    "--by", type=click.Choice(["owner", "tenant", "workload", "environment"]), default="owner", show_default=True,
    help="Group by this.",
)  # fmt: skip
@prints(_print_usage)
def usage(client: Client, since: float, until: float | None, by: str) -> UsageOut:
    """Show your usage and its cost. Admins see the usage of all users.

    Usage counts allocated resources, even if they were idle.

    \b
    Example:
      commonage usage --since 7d --by workload
    """
    return client.usage(since=since, until=until, by=by)


def hours_text(hours: float) -> str:
    """Three significant digits, without an exponent."""
    if not hours:
        return "0"
    if hours < 0.0001:
        return "<0.0001"
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"
