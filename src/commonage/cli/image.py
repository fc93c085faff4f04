"""`commonage image`: images that work runs in. What builds and pushes needs more than a server, and lives elsewhere."""

from __future__ import annotations

from importlib import import_module

import click

# Verbs that need the server's rooms, by name only, as in the table of all verbs.
_ELSEWHERE: dict[str, str] = {
    "build": "commonage.server.commands.image_build:build",
    "push": "commonage.server.commands.image_push:push",
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_ELSEWHERE, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = _ELSEWHERE.get(cmd_name)
        if home is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = home.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found


@click.group(cls=_Group)
def image() -> None:
    """Build images, push them to the site's registry, list and remove them.

    \b
    Example:
      commonage image build -t lab/torch -r requirements.txt
      commonage image push lab/torch
    """
