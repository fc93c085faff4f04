"""`commonage completion`: what makes a shell complete our verbs and options."""

from __future__ import annotations

import click


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes your shell complete commands and options.

    \b
    Example:
      commonage completion bash >> ~/.bashrc
      commonage completion fish > ~/.config/fish/completions/commonage.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # the choice above names those that click has
    click.echo(kind(ctx.find_root().command, {}, "commonage", "_COMMONAGE_COMPLETE").source())
