"""`commonage login`: keep a token, so that no verb needs one."""

from __future__ import annotations

import os
import sys

import click

from commonage.cli import show
from commonage.cli.connection import as_json
from commonage.cli.credentials import DEFAULT_URL, Server, keep, load, tidy
from commonage.cli.failures import MISUSED, Failure


@click.command
@click.argument("url", required=False, metavar="[URL]")
@click.option("--token", metavar="TOKEN", help="The token; asked for, or read from stdin, if left out.")
@as_json
def login(url: str | None, token: str | None, as_json: bool) -> None:
    """Keep a token for this command line, readable by you alone, and use that server from now on.

    The portal makes tokens (your name, then Token), and `commonage token` does on the server's own machine.

    \b
    Example:
      commonage login http://127.0.0.1:8000
      commonage token --user alice --data-dir .commonage | commonage login
    """
    from commonage.cli.connection import connect

    server = tidy(url or os.environ.get("COMMONAGE_URL") or load().default_url or DEFAULT_URL)
    given = (token or _ask(server)).strip()
    if not given:
        raise Failure("no token was given", MISUSED)
    if not given.isascii() or not given.isprintable() or " " in given:
        raise Failure("that is no token: a token is letters and digits, without spaces", MISUSED)
    with connect(Server(server, given)) as client:
        info = client.info()
    path = keep(server, given)
    if as_json:
        show.print_json({"url": server, "user": info.user, "admin": info.admin, "file": str(path)})
    else:
        click.echo(f"You are {info.user}{', an admin,' if info.admin else ''} at {server}. The token is in {path}.")


def _ask(server: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline(4096)
    click.echo(f"Make a token at {server}/hub/token and paste it here; it is not shown.", err=True)
    return str(click.prompt("Token", hide_input=True, err=True))
