"""`commonage up`, `config`, `component` and `token`: the server and its settings, on the server's machine."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.principals import Scope
from commonage.domain.requests import parse_duration
from commonage.ports.identity import IssuedToken
from commonage.server.commands.common import F, NotRunning, as_json, config_option, reads_settings, reported
from commonage.server.data_dir import Running, running_server
from commonage.server.identity import HubIdentity
from commonage.server.processes.components import run_component
from commonage.server.processes.remote import run_remote_component
from commonage.server.secrets import load_secrets, read_given_secrets
from commonage.server.settings.settings import FLAGS, Resolved, Settings, flag_help, shown
from commonage.server.settings.sources import resolve

USER_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.MANAGE, Scope.TOKENS)
"""Scopes of each token that `commonage token` creates."""
_START_TIMEOUT_S = 60.0


def _setting_options(command: F) -> F:
    """Add an option for each setting that has a flag. The values are strings or None, as `resolve` takes them."""
    for flag, name in reversed(FLAGS.items()):
        metavar = flag.rpartition("-")[2].upper()
        command = click.option(flag, name, metavar=metavar, help=flag_help(name))(command)
    return command


@click.command
@_setting_options
@click.option("--stop-workloads", is_flag=True, help="Also end workloads on SIGTERM. Ctrl-C always ends them.")
@config_option
def up(config: Path | None, stop_workloads: bool, **flags: Any) -> None:
    """Start Commonage on this machine, and run until Ctrl-C.

    The first start creates the data folder and prints how to sign in. Ctrl-C ends the server and all workloads:
    sessions end for good, jobs are requeued. SIGTERM ends only the server: workloads continue, and the next start
    adopts them.

    \b
    Examples:
      commonage up
      commonage up --data-dir /srv/commonage --bind 0.0.0.0 --gpus simulated:2x24GiB
    """
    with reported():
        resolved = resolve(flags, config=config)
    from commonage.server.main import serve  # noqa: PLC0415 - imports the whole server: only once the settings are valid

    sys.exit(serve(resolved.settings, stop_workloads=stop_workloads))


@click.command
@as_json
@reads_settings
def config(resolved: Resolved, as_json: bool) -> None:
    """Show every setting with its value and source. Passwords are hidden.

    \b
    Examples:
      commonage config
      COMMONAGE_PORT=9000 commonage config --json
    """
    rows = shown(resolved)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2, ensure_ascii=False))
        return
    values = [(row.name, _text(row.value), row.origin) for row in rows]
    widths = [max(len(row[column]) for row in values) for column in (0, 1)]
    for name, value, origin in values:
        click.echo(f"{name:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {origin}")
    if resolved.file is None:
        click.echo("No settings file was found.", err=True)


def _text(value: object) -> str:
    if value is None or value in ([], ""):
        return "-"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


@click.command
@click.argument("name", metavar="NAME")
@reads_settings
def component(resolved: Resolved, name: str) -> None:
    """Run one component of the server in its own process: hub, proxy or registry.

    With the setting `children = "external"`, each component is a container on the machine of the control plane. It
    shares the network of the machine and the folders of the component. The command waits for the configuration from the
    control plane, and restarts the component when the configuration changes.

    With `children = "remote"`, hub and proxy are separate pods with the same settings and secrets as the control plane.

    \b
    Example:
      commonage component hub --data-dir /var/lib/commonage
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a proxy asks for its rules several times a second
    asyncio.run(_run(name, resolved.settings))


async def _run(name: str, settings: Settings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if settings.children == "remote":
        await run_remote_component(name, settings, stopping)
    else:
        await run_component(name, settings.data_dir, stopping)


@click.command
@click.option("--user", required=True, metavar="NAME", help="User of the token. Created in JupyterHub if unknown.")
@click.option("--admin", is_flag=True, help="Include admin rights. Only for users who are admins.")
@click.option("--expires", metavar="TIME", help="Lifetime of the token: 30d, 12h.  [default: token_lifetime]")
@click.option("--note", default="created by `commonage token`", metavar="TEXT", help="Purpose of the token.")
@as_json
@reads_settings
def token(resolved: Resolved, user: str, admin: bool, expires: str | None, note: str, as_json: bool) -> None:
    """Create a token for a user, on the machine of a running server.

    A token does not make its user an admin. Use the setting `admin_users` for that.

    \b
    Examples:
      commonage token --user alice --expires 30d --data-dir .commonage
      commonage token --user admin --admin --json
    """
    data_dir = resolved.settings.data_dir
    expires_s = None if expires is None else parse_duration(expires, field="--expires")
    running = _ready_server(data_dir)
    given = resolved.settings.secrets_dir
    secret = (read_given_secrets(given) if given else load_secrets(data_dir)).hub_service_token
    try:
        made = asyncio.run(_mint(HubIdentity(running.hub_url, secret), user, admin, note, expires_s))
    except CommonageError as error:
        if not error.is_retryable:
            raise
        raise NotRunning(error.message) from None
    if as_json:
        shown = {"token": made.text, "user": user, "admin": admin, "url": running.url, "expires_at": made.expires_at}
        click.echo(json.dumps(shown))
    else:
        click.echo(made.text)
        ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(made.expires_at))
        click.echo(f"The token of {user} expires on {ends}.", err=True)


def _ready_server(data_dir: Path) -> Running:
    """The server on this folder. Waits for one that is starting. Raises NotRunning, DataDirError."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (running := running_server(data_dir)) is not None:
        if running.hub_url:
            return running
        if time.monotonic() > deadline:
            raise NotRunning(f"the server on {data_dir} is still starting. See {data_dir / 'logs' / 'server.log'}")
        time.sleep(0.1)
    raise NotRunning(f"no server runs on {data_dir}. Start it with: commonage up --data-dir {data_dir}")


async def _mint(identity: HubIdentity, user: str, admin: bool, note: str, expires_s: int | None) -> IssuedToken:
    scopes = [*USER_SCOPES, *([Scope.ADMIN] if admin else [])]
    try:
        if admin and not await identity.is_admin(user):
            raise InvalidInput(
                f"{user} is not an admin, and a token does not make one: another person may have signed in with that "
                "name. Add the user to `admin_users` and restart the server, which revokes the earlier sign-ins and "
                "tokens of that name. Or omit --admin.",
                field="user",
            )
        await identity.ensure_user(user)
        return await identity.mint_token(user, scopes, note, expires_s)
    finally:
        await identity.aclose()
