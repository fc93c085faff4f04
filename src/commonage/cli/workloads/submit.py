"""`commonage submit`: submits the workloads of a job file."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server

if TYPE_CHECKING:
    from commonage.cli.workloads.job_file import Entry
    from commonage.sdk import Client
    from commonage.wire.workloads import SubmitIn, SubmitOut


@click.command
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-files", is_flag=True, help="Send no files, even if the job file lists some.")
@click.option("--dry-run", is_flag=True, help="Only validate, and explain when the workloads could start.")
@as_json
@calls_server
def submit(server: Server, file: Path, no_files: bool, dry_run: bool, as_json: bool) -> None:
    """Submit the workload, or the list of workloads, of a job file.

    The files in the job file's folder are uploaded, as with `run`.
    `files: [train.py, data]` selects some, `files: false` sends none.

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
    from commonage.cli.workloads.job_file import read

    entries = read(file)
    with connect(server, reconnect_timeout_s=10.0) as client:
        if dry_run:
            _print_dry_runs(client, entries, as_json)
            return
        made = _submit_all(client, entries, file.absolute().parent, no_files)
    if as_json:
        output.print_json([one.workload for one in made])
        return
    for one in made:
        name = f"  {one.workload.name}" if one.workload.name else ""
        more = f", an array of {one.count}" if one.count > 1 else ""
        click.echo(f"{one.workload.id}{name}{more}{'' if one.created else ' (it already exists)'}")


def _submit_all(client: Client, entries: list[Entry], folder: Path, no_files: bool) -> list[SubmitOut]:
    """Submit in order, and replace names of earlier entries by ids. Workloads submitted before a refusal remain."""
    from commonage.cli.workloads.run import send_files

    bundles: dict[tuple[str, ...], str | None] = {}
    made: list[SubmitOut] = []
    ids: dict[str, str] = {}
    for entry in entries:
        update = _dependencies(entry, ids)
        if isinstance(entry.files, list) and not no_files and entry.request.bundle is None:
            key = tuple(entry.files)
            if key not in bundles:
                bundles[key] = send_files(client, folder, key)
            update["bundle"] = bundles[key]
        if entry.request.key is None:
            update["key"] = f"cli-{uuid.uuid4().hex}"
        one = client.submit(_with(entry.request, update))
        made.append(one)
        if entry.request.name:
            ids[entry.request.name] = one.workload.id
    return made


def _dependencies(entry: Entry, ids: dict[str, str]) -> dict[str, object]:
    from commonage.sdk import DependencyIn

    if not entry.after:
        return {}
    more = [DependencyIn.model_validate({"id": ids[name], "condition": how}) for name, how in entry.after]
    return {"depends_on": [*entry.request.depends_on, *more]}


def _with(request: SubmitIn, update: dict[str, object]) -> SubmitIn:
    return request.model_copy(update={name: value for name, value in update.items() if value is not None})


def _print_dry_runs(client: Client, entries: list[Entry], as_json: bool) -> None:
    found = [client.dry_run(entry.request) for entry in entries]
    if as_json:
        output.print_json(found)
        return
    for entry, one in zip(entries, found, strict=True):
        click.echo(f"{entry.request.name or ' '.join(entry.request.command)}:")
        click.echo("\n".join(f"  {line}" for line in output.explanation(one)))
