"""`commonage db`: the schema of the control plane's database."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from commonage.server.bootstrap import database_of
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.settings.settings import Resolved
from commonage.store import upgrade as schema
from commonage.store.urls import database_url, shown

T = TypeVar("T")


@click.group
def db() -> None:
    """Check or upgrade the database. `commonage up` upgrades it automatically.

    \b
    Example:
      commonage db check --data-dir /srv/commonage
    """


@db.command
@as_json
@reads_settings
def upgrade(resolved: Resolved, as_json: bool) -> None:
    """Upgrade the database to the schema of this version. Creates it if it does not exist.

    \b
    Example:
      COMMONAGE_DATABASE_URL=postgresql://commonage@db/commonage commonage db upgrade
    """
    url = database_of(resolved.settings, resolved.settings.data_dir)
    _run(schema.upgrade(url))
    if as_json:
        click.echo(json.dumps({"database": shown(database_url(url)), "upgraded": True}))
    else:
        click.echo(f"{shown(database_url(url))} has the schema of this version.")


@db.command
@as_json
@reads_settings
def check(resolved: Resolved, as_json: bool) -> None:
    """List differences between the database and this version's schema. Exit code 1 if there are any.

    It changes nothing.

    \b
    Example:
      commonage db check --json
    """
    url = database_of(resolved.settings, resolved.settings.data_dir)
    differences = _run(schema.check(url))
    if as_json:
        click.echo(json.dumps({"database": shown(database_url(url)), "differences": differences}, indent=2))
    else:
        for difference in differences:
            click.echo(f"- {difference}")
        if not differences:
            click.echo(f"{shown(database_url(url))} has the schema of this version.")
    sys.exit(1 if differences else 0)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except OSError as error:
        raise Failure(f"the database cannot be used: {error}. Check `database_url`.") from None
