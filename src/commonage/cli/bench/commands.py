"""The verb `bench` and its benchmarks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from commonage.cli.bench.report import Figure, show

ELSEWHERE = {
    "placement": "commonage.server.commands.bench_placement:placement",
    "schedule": "commonage.server.commands.bench_schedule:schedule",
    "gpu-shares": "commonage.server.commands.bench_gpu_shares:gpu_shares",
}
"""Benchmarks that see planner or cards themselves; named as text, so that the command line stays blind to them."""


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
    if not all(part.strip().isdigit() and 0 < int(part) <= 200 for part in parts):
        raise click.BadParameter("write numbers from 1 to 200 like 1,10,30")
    return [int(part) for part in parts]


@bench.command()
@click.option("--at-once", "sizes", default="1,10,30", show_default=True, callback=_sizes, help="Sessions at once.")
@click.option("--engine", type=click.Choice(["process", "swarm"]), default="process", show_default=True, help="Ours.")
@click.option("--peer", type=click.Choice(["local", "swarmspawner", "none"]), help="A spawner of JupyterHub's, too.")
@click.option("--image", default="", help="The sessions' image, of both, where they are containers.")
@click.option("--docker-url", default="unix:///var/run/docker.sock", show_default=True, help="A manager's daemon.")
@click.option("--reach", default="127.0.0.1", show_default=True, help="This machine's address for the workers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sessions(sizes: list[int], engine: str, peer: str | None, as_json: bool, **containers: str) -> None:
    """From asking for a session to its answering, beside a spawner of JupyterHub's.

    \b
    Example:
      commonage bench sessions --at-once 1,10
      commonage bench sessions --engine swarm --peer swarmspawner --image notebook:1 --reach 10.0.0.1
    """
    from commonage.cli.bench.sessions import PEERS, Setting, run

    peer = peer or PEERS[engine]
    if peer not in ("none", PEERS[engine]):
        raise click.UsageError(f"the peer of the engine {engine} is {PEERS[engine]}; --peer none leaves it out")
    if engine != "process" and not containers["image"]:
        raise click.UsageError(f"the sessions of the engine {engine} are containers: name their --image")
    setting = Setting(engine, None if peer == "none" else peer, **containers)
    _print("Sessions, POST to ready", run(sizes, _say, setting), as_json)


@bench.command()
@click.option("--count", default=200, show_default=True, help="No-op jobs.")
@click.option("--image", required=True, help="An image with a shell.")
@click.option("--docker-url", default="unix:///var/run/docker.sock", show_default=True, help="A manager's daemon.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def swarm(count: int, image: str, docker_url: str, as_json: bool) -> None:
    """No-op jobs on a Docker Swarm, beside plain services that do the same: what of the time is ours.

    \b
    Example:
      commonage bench swarm --image debian:12
    """
    from commonage.cli.bench.swarm import run

    _print("No-op jobs on a Swarm", run(count, image, docker_url, _say), as_json)


@bench.command()
@click.option("--out", type=click.Path(path_type=Path), default="gpu-report.md", show_default=True, help="The report.")
@click.option("--seconds", default=20.0, show_default=True, help="For each figure.")
def gpu(out: Path, seconds: float) -> None:
    """All that can only be known on a machine with cards, in one report: do shares hold, and what do they cost?

    Nobody may use the cards meanwhile; it takes some minutes a card. Without a card it says what it would have run.
    Exit code 1 if a part of it went wrong.

    \b
    Example:
      sudo commonage bench gpu --out gpu-report.md
    """
    from commonage.cli.bench.gpu import WHAT, card_or_why, run

    why = card_or_why()
    if why:
        click.echo(f"{why}\nWith a card this would be run and written to {out}:")
        for title, what in WHAT:
            click.echo(f"  {title:<25} {what}")
        return
    parts = run(out, seconds, _say)
    for part in parts:
        click.echo(f"{'ok ' if part.is_good else 'BAD'}  {part.title}")
    click.echo(f"The report is in {out}.")
    if not all(part.is_good for part in parts):
        raise click.exceptions.Exit(1)
