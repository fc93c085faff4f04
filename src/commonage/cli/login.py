"""`commonage login`, `info` and `completion`: set up this command line."""

from __future__ import annotations

import os
import sys

import click

from commonage.cli import output
from commonage.cli.connection import DEFAULT_URL, Server, as_json, calls_server, connect, load, normalize_url, save
from commonage.cli.errors import MISUSED, Failure


@click.command
@click.argument("url", required=False, metavar="[URL]")
@click.option("--token", metavar="TOKEN", help="The token (default: read from stdin, or prompted for).")
@as_json
def login(url: str | None, token: str | None, as_json: bool) -> None:
    """Save a token and its server for this command line.

    Only you can read the file. Create a token in the portal (your name, then Token), or with `commonage token` on the
    machine of the server.

    \b
    Examples:
      commonage login http://127.0.0.1:8000
      commonage token --user alice --data-dir .commonage | commonage login
    """
    server = normalize_url(url or os.environ.get("COMMONAGE_URL") or load().default_url or DEFAULT_URL)
    given = (token or _read_token(server)).strip()
    if not given:
        raise Failure("no token was given", MISUSED)
    if not given.isascii() or not given.isprintable() or " " in given:
        raise Failure("this is not a token: a token has letters and digits, and no spaces", MISUSED)
    with connect(Server(server, given)) as client:
        info = client.info()
    path = save(server, given, info.token_expires_at)
    if as_json:
        saved = {"url": server, "user": info.user, "admin": info.admin, "file": str(path)}
        output.print_json({**saved, "token_expires_at": info.token_expires_at})
    else:
        click.echo(f"You are {info.user}{', an admin,' if info.admin else ''} at {server}. The token is in {path}.")
        if info.token_expires_at is not None:
            click.echo(f"It expires on {output.clock(info.token_expires_at)}.")


def _read_token(server: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline(4096)
    click.echo(f"Create a token at {server}/hub/token and paste it here. It is not shown.", err=True)
    return str(click.prompt("Token", hide_input=True, err=True))


@click.command
@as_json
@calls_server
def info(server: Server, as_json: bool) -> None:
    """Show the server, your account and the number of workloads.

    \b
    Example:
      commonage info --json
    """
    with connect(server) as client:
        about = client.info()
    if as_json:
        output.print_json(about)
        return
    counts = ", ".join(f"{number} {state}" for state, number in about.counts.items() if number) or "none"
    click.echo(f"{about.name} {about.version} at {server.url}")
    click.echo(f"You are {about.user}{', an admin' if about.admin else ''}.")
    click.echo(f"Engines: {', '.join(about.engines)}. Workloads: {counts}; {about.queue_length} in the queue.")
    if about.simulated_gpus:
        click.echo("GPUs are simulated: nothing is computed on them.")
    for note in about.notes:
        click.echo(f"- {note.message}")


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for your shell.

    \b
    Examples:
      commonage completion bash >> ~/.bashrc
      commonage completion fish > ~/.config/fish/completions/commonage.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has a class for each choice
    click.echo(kind(ctx.find_root().command, {}, "commonage", "_COMMONAGE_COMPLETE").source())
