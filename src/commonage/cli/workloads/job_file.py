"""`commonage submit`: submits a job file, `NAME.commonage.yml`: one workload or a list of them. Errors name the line.

A workload has the fields of the API, with these differences. `time`, `grace`, `backoff` and `memory` are text with a
unit, in place of `time_limit_s`, `grace_s`, `backoff_s` and `memory_mib`. `command` may be text as in a shell.
An entry with `schedule` is a cron job: it has the fields of its rule, with `starting_deadline` as text with a unit.
`depends_on` takes `afterok:ID` with an id or the name of an earlier entry. `files` selects the files to send: `true`
(the folder of the job file), `false`, or a list of paths in it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import Server, as_json, calls_server, connect
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.reservation import time_zone
from commonage.cli.workloads.cron_job import CRON_FIELDS, print_created, print_next_times
from commonage.cli.workloads.files import send_files
from commonage.cli.workloads.request import CONDITIONS, invalid_dependency, new_key, validation_messages
from commonage.units import TEXT_FIELDS, UnitError, with_units_in_names

if TYPE_CHECKING:
    import yaml

    from commonage.sdk import Client, CronJobIn
    from commonage.wire.cron_jobs import CronJobOut
    from commonage.wire.workloads import SubmitIn, SubmitOut

MAX_BYTES = 1024 * 1024
MAX_WORKLOADS = 1000
_YAML_BOOL, _YAML_NULL, _YAML_TEXT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "str"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of a file. `files`: the files to send; False for none, an empty list for the whole folder."""

    request: SubmitIn
    files: list[str] | bool
    after: list[tuple[str, str]]  # (name of an earlier entry, condition)
    cron: dict[str, Any] | None = None  # the fields of its cron job, without the job


class _LineError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


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
      - name: report
        command: python report.py
        schedule: "0 7 * * 1-5"
        time_zone: Europe/Berlin
    and:
      commonage submit train.commonage.yml
    """
    entries = read(file)
    with connect(server, reconnect_timeout_s=10.0) as client:
        if dry_run:
            _print_dry_runs(client, entries, as_json)
            return
        submitted = _submit_all(client, entries, file.absolute().parent, no_files)
    if as_json:
        output.print_json([getattr(each, "workload", each) for each in submitted])
        return
    from commonage.wire.cron_jobs import CronJobOut

    for each in submitted:
        if isinstance(each, CronJobOut):
            print_created(each)
            continue
        name = f"  {each.workload.name}" if each.workload.name else ""
        array = f", an array of {each.count}" if each.count > 1 else ""
        click.echo(f"{each.workload.id}{name}{array}{'' if each.created else ' (it already exists)'}")


def _submit_all(client: Client, entries: list[Entry], folder: Path, no_files: bool) -> list[SubmitOut | CronJobOut]:
    """Submit in order, and replace names of earlier entries by ids. Workloads submitted before a refusal remain."""
    bundles: dict[tuple[str, ...], str | None] = {}
    submitted: list[SubmitOut | CronJobOut] = []
    ids: dict[str, str] = {}
    for entry in entries:
        update = _earlier_ids(entry, ids)
        if isinstance(entry.files, list) and not no_files and entry.request.bundle is None:
            key = tuple(entry.files)
            if key not in bundles:
                bundles[key] = send_files(client, folder, key)
            if bundles[key] is not None:
                update["bundle"] = bundles[key]
        if entry.cron is not None:
            submitted.append(client.create_cron_job(_cron_job_of(entry, update)))
            continue
        if entry.request.key is None:
            update["key"] = new_key()
        answer = client.submit(entry.request.model_copy(update=update))
        submitted.append(answer)
        if entry.request.name:
            ids[entry.request.name] = answer.workload.id
    return submitted


def _earlier_ids(entry: Entry, ids: dict[str, str]) -> dict[str, object]:
    from commonage.sdk import DependencyIn

    earlier = [DependencyIn.model_validate({"id": ids[name], "condition": how}) for name, how in entry.after]
    return {"depends_on": [*entry.request.depends_on, *earlier]} if earlier else {}


def _cron_job_of(entry: Entry, update: dict[str, object]) -> CronJobIn:
    from commonage.sdk import CronJobIn

    return CronJobIn(**(entry.cron or {}), job=entry.request.model_copy(update=update))


def _print_dry_runs(client: Client, entries: list[Entry], as_json: bool) -> None:
    from commonage.wire.cron_jobs import CronJobOut

    explanations = [
        client.dry_run(entry.request) if entry.cron is None else client.dry_run_cron_job(_cron_job_of(entry, {}))
        for entry in entries
    ]
    if as_json:
        output.print_json(explanations)
        return
    for entry, explanation in zip(entries, explanations, strict=True):
        click.echo(f"{entry.request.name or ' '.join(entry.request.command)}:")
        if isinstance(explanation, CronJobOut):
            print_next_times(explanation)
            continue
        click.echo("\n".join(f"  {line}" for line in output.explanation(explanation)))


def read(path: Path) -> list[Entry]:
    """The entries of the file. Raises Failure with the line of each mistake."""
    import yaml

    text = _text(path)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Failure(f"{path}: {_yaml_message(error)}", MISUSED) from None
    except RecursionError:
        raise Failure(f"{path} is nested too deeply", MISUSED) from None
    if root is None:
        raise Failure(f"{path} is empty. Write a workload, such as: command: python train.py", MISUSED)
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    if len(nodes) > MAX_WORKLOADS:
        raise Failure(f"{path} has {len(nodes)} workloads; a job file has at most {MAX_WORKLOADS}", MISUSED)
    entries: list[Entry] = []
    mistakes: list[str] = []
    for node in nodes:
        try:
            entries.append(_entry(node, {entry.request.name for entry in entries if entry.request.name}))
        except _LineError as error:
            mistakes.append(str(error))
    if mistakes:
        raise Failure("\n".join(f"{path}, {mistake}" for mistake in mistakes), MISUSED)
    return entries


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise Failure(f"the job file {path} does not exist", MISUSED)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Failure(
                f"{path} is {size / 1024**2:.1f} MiB; a job file has at most 1 MiB. Send data as `files`.",
                MISUSED,
            )
        return path.read_bytes().decode()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Failure(f"{path}, line {line}: not UTF-8 text (byte {error.start})", MISUSED) from None


def _yaml_message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: not valid YAML: {problem}" if mark else f"not valid YAML: {problem}"


def _entry(node: yaml.Node, earlier: set[str]) -> Entry:
    import yaml
    from pydantic import ValidationError

    from commonage.sdk import SubmitIn

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _LineError(line, "a workload is a mapping, like `command: python train.py`")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    repeated = [str(key.value) for key, _ in node.value if lines[str(key.value)] != key.start_mark.line + 1]
    if repeated:
        raise _LineError(lines[repeated[0]], f"{repeated[0]} is given twice")
    values = _plain(node)
    files = _files(values.pop("files", True), lines.get("files", line))
    if isinstance(values.get("command"), str):
        try:
            values["command"] = shlex.split(values["command"])
        except ValueError as error:
            raise _LineError(lines["command"], f"invalid command: {error}") from None
    for name in values.keys() & TEXT_FIELDS:
        try:
            number = with_units_in_names({name: values.pop(name)})
        except UnitError as error:
            raise _LineError(lines[name], str(error)) from None
        if number.keys() & values.keys():
            raise _LineError(lines[name], f"{name} and {', '.join(number)} are the same. Give one of them.")
        values |= number
    cron = {name: values.pop(name) for name in CRON_FIELDS & values.keys()}
    if cron and "schedule" not in cron:
        raise _LineError(lines.get(min(cron), line), f'{min(cron)} is for cron jobs. Add a schedule: "0 7 * * *".')
    values["depends_on"], after = _dependencies(values.get("depends_on", []), earlier, lines.get("depends_on", line))
    try:
        request = SubmitIn.model_validate({k: v for k, v in values.items() if v not in (None, [])})
        return Entry(request, files, after, _checked(cron, request) if cron else None)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = lines.get(str(first["loc"][0]), line) if first["loc"] else line
        raise _LineError(where, "; ".join(validation_messages(error))) from None


def _checked(cron: dict[str, Any], request: SubmitIn) -> dict[str, Any]:
    """The fields of the cron job, in the user's time zone unless another is given. Raises ValidationError."""
    from commonage.sdk import CronJobIn

    cron = {"time_zone": time_zone(), **{name: value for name, value in cron.items() if value is not None}}
    CronJobIn(**cron, job=request)
    return cron


def _plain(node: yaml.MappingNode) -> dict[str, Any]:
    import yaml

    for key, value in node.value:
        if key.tag == _YAML_BOOL:  # `on` is a field, not YAML's true
            key.tag = _YAML_TEXT
        if key.value in TEXT_FIELDS and isinstance(value, yaml.ScalarNode) and value.tag != _YAML_NULL:
            value.tag = _YAML_TEXT  # 1:30:00 is a time, not a sexagesimal number of YAML
    try:
        values = yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _LineError(node.start_mark.line + 1, f"invalid: {error}") from None
    return {str(key): value for key, value in values.items()}


def _files(given: object, line: int) -> list[str] | bool:
    if given is True:
        return []
    if given is False or given is None:
        return False
    if isinstance(given, list) and given and all(isinstance(path, str) for path in given):
        return given
    raise _LineError(line, "files must be true, false, or a list of paths")


def _dependencies(given: object, earlier: set[str], line: int) -> tuple[list[Any], list[tuple[str, str]]]:
    ids: list[Any] = []
    after: list[tuple[str, str]] = []
    for dependency in given if isinstance(given, list) else [given]:
        if not isinstance(dependency, str):
            ids.append(dependency)
            continue
        condition, colon, target = dependency.partition(":")
        if not colon:
            condition, target = "afterok", dependency
        if condition not in CONDITIONS:
            raise _LineError(line, invalid_dependency(dependency))
        if target in earlier:
            after.append((target, condition))
        else:
            ids.append({"id": target, "condition": condition})
    return ids, after
