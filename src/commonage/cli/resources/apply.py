"""`commonage plan`, `apply`, `diff` and `export`: the platform as files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import output
from commonage.cli.connection import Server, as_json, calls_server, connect
from commonage.cli.errors import FAILED, MISUSED, Failure
from commonage.cli.resources.documents import Located, read_paths, with_place, write
from commonage.sdk.errors import ApiError
from commonage.wire.hub import API_PATH

if TYPE_CHECKING:
    from commonage.wire.resources import PlanOut, ResourceChangeOut

F = TypeVar("F", bound=Callable[..., Any])
DIFFERS = 1
_SIGNS = {"create": "+", "change": "~", "delete": "-"}
_NAMED = 8

files = click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))


def options(command: F) -> F:
    """Add the options that `plan` and `apply` share."""
    for option in (
        click.option("--take-over", is_flag=True, help="Also change resources that a git repository manages."),
        click.option(
            "--prune",
            is_flag=True,
            help="Delete resources that are not in the files, except those of a git repository.",
        ),
    ):
        command = option(command)
    return command


@click.command
@files
@options
@click.option(
    "--managed-by", default="", metavar="SOURCE", help="Plan as if the git source `git:REPO@BRANCH` applied the files."
)
@as_json
@calls_server
def plan(server: Server, files: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Preview `apply`: the changes, and the people that they affect. For admins.

    For a folder, all files in it are read whose names end in commonage.yml. The exit code is 1 if `apply` would
    refuse a change.

    \b
    Example:
      commonage plan platform/
    """
    documents = read_paths(files)
    with connect(server) as client, _places(documents):
        found = client.plan(_ask(documents, **options))
    _show(found, as_json)
    if _is_refused(found):
        raise click.exceptions.Exit(FAILED)


@click.command
@files
@options
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changes that affect workloads or delete resources.")
@as_json
@calls_server
def apply(server: Server, files: tuple[Path, ...], prune: bool, take_over: bool, yes: bool, as_json: bool) -> None:
    """Apply the resources of files: all of them, or none if one is invalid. For admins.

    \b
    Example:
      commonage apply tenants.commonage.yml volumes.commonage.yml
    """
    put_in_force(server, read_paths(files), prune=prune, take_over=take_over, yes=yes, as_json=as_json)


def put_in_force(
    server: Server, documents: Sequence[Located], *, prune: bool, take_over: bool, yes: bool, as_json: bool
) -> None:
    """Plan the documents, ask for consent where it is needed, and apply them."""
    ask = _ask(documents, prune, take_over)
    with connect(server) as client, _places(documents):
        planned = client.plan(ask)
        if _is_empty(planned):
            _show(planned, as_json)
            return
        if not as_json:
            _show(planned, as_json=False)
        if not yes and not _is_refused(planned) and any(_needs_consent(one) for one in planned.changes):
            _confirm()
        from commonage.wire.resources import ApplyIn

        done = client.apply(ApplyIn(**ask.model_dump(), revision=planned.revision))
    if as_json:
        output.print_json(done)
    else:
        click.echo("Applied.")


def _needs_consent(change: ResourceChangeOut) -> bool:
    return change.action == "delete" or (change.action != "create" and bool(change.affected))


def _is_refused(found: PlanOut) -> bool:
    return any(one.refusal is not None for one in found.changes)


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise Failure("the change affects workloads or deletes resources. Repeat it with --yes.", MISUSED)
    click.confirm("Apply?", abort=True, err=True)


@click.command
@files
@as_json
@calls_server
def diff(server: Server, files: tuple[Path, ...], as_json: bool) -> None:
    """Compare the server with files that declare all resources. Exit code 1 if they differ. For admins.

    \b
    Example:
      commonage diff platform/
    """
    documents = read_paths(files)
    with connect(server) as client, _places(documents):
        found = client.plan(_ask(documents, prune=True, take_over=True))
    _show(found, as_json)
    if not _is_empty(found):
        raise click.exceptions.Exit(DIFFERS)


@click.command
@click.option("--output", "-o", "file", type=click.Path(path_type=Path), help="File to write.  [default: stdout]")
@as_json
@calls_server
def export(server: Server, file: Path | None, as_json: bool) -> None:
    """Print all declared resources as a file. Applying it changes nothing. For admins.

    \b
    Example:
      commonage export -o platform.commonage.yml
    """
    with connect(server) as client:
        found = client.export()
    if as_json:
        output.print_json(found)
        return
    text = write(found.documents, f"{server.url}{API_PATH}/schema/commonage.yml.json")
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"{len(found.documents)} resources written to {file}")


def _ask(documents: Sequence[Located], prune: bool, take_over: bool, managed_by: str = "") -> Any:
    from commonage.wire.resources import PlanIn

    plain = [one.document for one in documents]
    return PlanIn(documents=plain, prune=prune, take_over=take_over, managed_by=managed_by)


@contextmanager
def _places(documents: Sequence[Located]) -> Iterator[None]:
    """Refusals of a document name its file and line."""
    try:
        yield
    except ApiError as error:
        if error.field and error.field.startswith("documents."):
            raise Failure(with_place(error, documents), MISUSED) from None
        raise


def _is_empty(found: PlanOut) -> bool:
    return all(one.action == "unchanged" for one in found.changes)


def _show(found: PlanOut, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
    else:
        click.echo("\n".join(plan_lines(found)))


def plan_lines(found: PlanOut) -> list[str]:
    """The plan as text: a line for each change, then its fields and the people that it affects."""
    changes = [one for one in found.changes if one.action != "unchanged"]
    unchanged = len(found.changes) - len(changes)
    lines = [line for one in changes for line in _change_lines(one)]
    counts = [f"{sum(one.action == action for one in changes)} to {action}" for action in _SIGNS]
    summary = f"{', '.join(counts)}, {unchanged} unchanged." if changes else f"No changes: {unchanged} resources match."
    return [*lines, summary]


def _change_lines(change: ResourceChangeOut) -> Iterator[str]:
    managed = f"  (managed by {change.managed_by})" if change.managed_by else ""
    yield f"{_SIGNS[change.action]} {change.kind} {change.name}{managed}"
    for field in change.fields:
        yield f"    {field.path}: {_value(field.before)} -> {_value(field.after)}"
    if change.refusal is not None:
        yield f"    refused: {change.refusal.message}"
    for affected in change.affected:
        yield f"    ! {affected.reason.message}"
        named = [f"{one.id} ({one.owner}{f', {one.name}' if one.name else ''})" for one in affected.workloads]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        if named:
            yield f"      workloads: {', '.join(named[:_NAMED])}{more}"
        yield f"      people: {', '.join(affected.people)}"


def _value(value: Any) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)
