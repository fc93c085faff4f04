"""The verb `bench` and its benchmarks."""

from __future__ import annotations

from importlib import import_module

import click

from commonage.cli.bench.report import Figure, show

ELSEWHERE = {"placement": "commonage.server.commands.bench_placement:placement"}
"""Benchmarks that see the planner itself; named as text, so that the command line stays blind to it."""


class _Benchmarks(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = ELSEWHERE[cmd_name].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found


@click.group(cls=_Benchmarks)
def bench() -> None:
    """Measure this installation on this machine.

    \b
    Example:
      commonage bench control
      commonage bench sessions --at-once 1,10 --json
    """


def _say(line: str) -> None:
    click.echo(f"  {line} …", err=True)


def _print(title: str, figures: list[Figure], as_json: bool) -> None:
    click.echo(show(title, figures, as_json=as_json))


@bench.command()
@click.option("--jobs", default=800, show_default=True, help="No-op jobs to run through.")
@click.option("--clients", default=10, show_default=True, help="Connections that submit at once.")
@click.option("--queued", default=10_000, show_default=True, help="Jobs in the queue for the figures that need one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def control(jobs: int, clients: int, queued: int, as_json: bool) -> None:
    """What the control plane bears: submits, starts, lists, memory.

    \b
    Example:
      commonage bench control --jobs 2000
    """
    from commonage.cli.bench.control import run

    _print("The control plane", run(jobs, clients, queued, _say), as_json)


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and 0 < int(part) <= 500 for part in parts):
        raise click.BadParameter("write numbers from 1 to 500 like 1,10,30")
    return [int(part) for part in parts]


@bench.command()
@click.option("--at-once", "sizes", default="1,10,30", show_default=True, callback=_sizes, help="Sessions at once.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Also JupyterHub's own local spawner.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sessions(sizes: list[int], peer: bool, as_json: bool) -> None:
    """From asking for a session to its answering, beside JupyterHub's local spawner.

    \b
    Example:
      commonage bench sessions --at-once 1,10
    """
    from commonage.cli.bench.sessions import run

    _print("Sessions, POST to ready", run(sizes, _say, peer), as_json)
