"""`commonage token`: creates a token for a user, on the server's machine."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import click

from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.principals import Scope
from commonage.domain.requests import parse_duration
from commonage.ports.identity import IssuedToken
from commonage.server.commands.common import Failure, NotRunning, as_json, reads_settings
from commonage.server.data_dir import DataDirError, Running, running_server
from commonage.server.identity import HubIdentity
from commonage.server.secrets import SecretsError, load_secrets
from commonage.server.settings.sources import Resolved

_START_TIMEOUT_S = 60.0


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
    try:
        expires_s = None if expires is None else parse_duration(expires, field="--expires")
        running = _ready_server(data_dir)
        secret = load_secrets(data_dir).hub_service_token
        made = asyncio.run(_mint(HubIdentity(running.hub_url, secret), user, admin, note, expires_s))
    except InvalidInput as error:
        raise Failure(error.message) from None
    except CommonageError as error:
        raise (NotRunning if error.is_retryable else Failure)(error.message) from None
    except (DataDirError, SecretsError) as error:
        raise Failure(str(error)) from None
    if as_json:
        shown = {"token": made.text, "user": user, "admin": admin, "url": running.url, "expires_at": made.expires_at}
        click.echo(json.dumps(shown))
    else:
        click.echo(made.text)


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
    scopes = [Scope.READ, Scope.SUBMIT, Scope.TOKENS, *([Scope.ADMIN] if admin else [])]
    try:
        if admin and not await identity.is_admin(user):
            raise InvalidInput(
                f"{user} is not an admin, and a token does not make one: somebody else may have signed in with that "
                "name. Add the user to `admin_users` and restart the server, which revokes the earlier sign-ins and "
                "tokens of that name. Or omit --admin.",
                field="user",
            )
        await identity.ensure_user(user)
        return await identity.mint_token(user, scopes, note, expires_s)
    finally:
        await identity.aclose()
