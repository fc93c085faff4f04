"""`commonage site join`: lets this machine join as a site of a control plane elsewhere. Runs on the appliance."""

from __future__ import annotations

from typing import IO

import click

from commonage.domain.errors import Unavailable
from commonage.link.sites.credentials import SiteCredentials
from commonage.server.commands.common import Failure, reads_settings
from commonage.server.settings.settings import Resolved
from commonage.site_agent.join import join as join_site

FOLDER = "site"
"""Folder of the identity, in the data folder."""


@click.command("join")
@click.argument("address", required=False, default="")
@click.option("--token", metavar="TOKEN", help="The token. Other users of this machine can read a command line.")
@click.option("--token-file", type=click.File(), metavar="FILE", help="Read the token from this file (- is stdin).")
@reads_settings
def join(resolved: Resolved, address: str, token: str | None, token_file: IO[str] | None) -> None:
    """Let this machine join as a site of a control plane elsewhere.

    ADDRESS is the address of the control plane, by default the one in the token. The private key is created on this
    machine and never leaves it. The control plane is verified by the fingerprint in the token. Repeating an interrupted
    join is safe.

    \b
    Examples:
      commonage site join --token-file token
      commonage site join commonage.example.org:8445 --token-file -
    """
    if (token is None) == (token_file is None):
        raise Failure("give either --token or --token-file. Create a token with `commonage site token NAME`")
    text = token_file.read() if token_file is not None else token or ""
    folder = resolved.settings.data_dir.absolute() / FOLDER
    try:
        identity = join_site(SiteCredentials(folder), text, address)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be written: {error.strerror or error}") from error
    click.echo(f"This machine is the site {identity.site} of the control plane at {', '.join(identity.addresses)}.")
