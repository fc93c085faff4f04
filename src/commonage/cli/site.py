"""`commonage site`: sites elsewhere, which connect to this control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.app import LazyGroup
from commonage.cli.connection import prints
from commonage.cli.nodes.join import VALIDITY, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.sites import SiteOut, SiteTokenOut

_NOTABLE_OFFSET_S = 2.0


_ON_APPLIANCE = {
    "join": "commonage.server.commands.site_join:join",
    "agent": "commonage.server.commands.site_agent:agent",
}


@click.group(cls=LazyGroup, lazy=_ON_APPLIANCE)
def site() -> None:
    """List, invite, revoke and remove sites elsewhere.

    \b
    Examples:
      commonage site ls
      commonage site token clinic
      commonage site join --token-file token
      commonage site agent
      commonage site revoke clinic
    """


def _print_sites(sites: Sequence[SiteOut]) -> None:
    if not sites:
        click.echo("No sites elsewhere. Invite one with `commonage site token NAME`.", err=True)
        return
    table = output.table("SITE", "STATE", "LAST SEEN", "ADDRESS", "VERSION", "CERTIFICATE UNTIL")
    for each in sites:
        table.add_row(
            output.text(each.name),
            each.state,
            "" if each.last_seen is None else output.clock(each.last_seen),
            output.text(each.address),
            output.text(each.version),
            "" if each.certificate_until is None else output.clock(each.certificate_until),
        )
    output.console().print(table)
    for each in sites:
        if each.clock_offset_s is not None and abs(each.clock_offset_s) > _NOTABLE_OFFSET_S:
            direction = "behind" if each.clock_offset_s > 0 else "ahead"
            click.echo(f"Note: the clock of {each.name} is {abs(each.clock_offset_s):.1f} s {direction}.", err=True)


@site.command("ls")
@prints(_print_sites)
def list_sites(client: Client) -> Sequence[SiteOut]:
    """List the sites elsewhere and the state of their links. For admins.

    States: invited (has not joined yet); connected; disconnected; revoked.

    \b
    Example:
      commonage site ls --json
    """
    return client.sites()


def _print_token(token: SiteTokenOut) -> None:
    lines = (
        f"Run this on the machine that becomes the site {token.site}, before {output.clock(token.expires_at)}:",
        "",
        token.command,
        "",
        "It reads this token, which works once:",
        token.token,
    )
    click.echo("\n".join(lines))


@site.command("token")
@click.argument("name")
@VALIDITY
@prints(_print_token)
def token(client: Client, name: str, how_long: str) -> SiteTokenOut:
    """Create a token with which one machine may join as the site NAME. For admins.

    It replaces an earlier token of this site. A machine that has joined as this site stays connected until another one
    joins.

    \b
    Example:
      commonage site token clinic --for 30m
    """
    return client.site_token(name, for_s=seconds_of(how_long))


def _print_done(done: dict[str, list[str]]) -> None:
    click.echo("\n".join(done["done"]))


@site.command("revoke")
@click.argument("name")
@prints(_print_done)
def revoke(client: Client, name: str) -> dict[str, list[str]]:
    """Revoke the certificate and the token of a site, and end its link at once. For admins.

    The site stays listed. It can join again with a new token.

    \b
    Example:
      commonage site revoke clinic
    """
    return {"done": list(client.revoke_site(name))}


@site.command("rm")
@click.argument("name")
@prints(_print_done)
def remove(client: Client, name: str) -> dict[str, list[str]]:
    """Revoke a site and forget it. For admins.

    \b
    Example:
      commonage site rm clinic
    """
    return {"done": list(client.remove_site(name))}
