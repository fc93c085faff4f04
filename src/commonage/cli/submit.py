"""`commonage submit`: what a job file describes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server

if TYPE_CHECKING:
    from commonage.cli.job_file import Entry
    from commonage.sdk import Client
    from commonage.wire.workloads import SubmitIn, SubmitOut


@click.command
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-files", is_flag=True, help="Send nothing along, whatever the file says.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of it.")
@as_json
@calls_server
def submit(server: Server, file: Path, no_files: bool, dry_run: bool, as_json: bool) -> None:
    """Submit what a job file describes: one workload, or a list of them.

    The files of its folder go along, as with `run`; `files: [train.py, data]` narrows that, `files: false` sends
    nothing.

    \b
    Example, train.commonage.yml:
      - name: prepare
        command: python prepare.py
      - name: train
        command: python train.py --epochs 20
        gpus: 6GiB
        time: 2h
        depends_on: afterok:prepare
    and:
      commonage submit train.commonage.yml
    """
    from commonage.cli.job_file import read

    entries = read(file)
    with connect(server, reconnect_timeout_s=10.0) as client:
        if dry_run:
            _say_dry_runs(client, entries, as_json)
            return
        made = _submit_all(client, entries, file.absolute().parent, no_files)
    if as_json:
        show.print_json([one.workload for one in made])
        return
    for one in made:
        name = f"  {one.workload.name}" if one.workload.name else ""
        more = f", an array of {one.count}" if one.count > 1 else ""
        click.echo(f"{one.workload.id}{name}{more}{'' if one.created else ' (it was there already)'}")


def _submit_all(client: Client, entries: list[Entry], folder: Path, no_files: bool) -> list[SubmitOut]:
    """All of them, in order; names of earlier ones become their ids. What was made before a refusal stays."""
    from commonage.cli.run import send_files

    bundles: dict[tuple[str, ...], str | None] = {}
    made: list[SubmitOut] = []
    ids: dict[str, str] = {}
    for entry in entries:
        update = _dependencies(entry, ids)
        if isinstance(entry.files, list) and not no_files and entry.ask.bundle is None:
            key = tuple(entry.files)
            if key not in bundles:
                bundles[key] = send_files(client, folder, key)
            update["bundle"] = bundles[key]
        if entry.ask.key is None:
            update["key"] = f"cli-{uuid.uuid4().hex}"
        one = client.submit(_with(entry.ask, update))
        made.append(one)
        if entry.ask.name:
            ids[entry.ask.name] = one.workload.id
    return made


def _dependencies(entry: Entry, ids: dict[str, str]) -> dict[str, object]:
    from commonage.sdk import DependencyIn

    if not entry.after:
        return {}
    more = [DependencyIn.model_validate({"id": ids[name], "condition": how}) for name, how in entry.after]
    return {"depends_on": [*entry.ask.depends_on, *more]}


def _with(ask: SubmitIn, update: dict[str, object]) -> SubmitIn:
    return ask.model_copy(update={name: value for name, value in update.items() if value is not None})


def _say_dry_runs(client: Client, entries: list[Entry], as_json: bool) -> None:
    said = [client.dry_run(entry.ask) for entry in entries]
    if as_json:
        show.print_json(said)
        return
    for entry, one in zip(entries, said, strict=True):
        click.echo(f"{entry.ask.name or ' '.join(entry.ask.command)}:")
        click.echo("\n".join(f"  {line}" for line in show.explanation(one)))
