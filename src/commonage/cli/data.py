"""`commonage data`: files of homes and volumes, without a session: list, upload, download, move and remove."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import Server, calls_server, connect, prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.workloads.follow import StatusLine, follow
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.files import FileList, FileOut, FilePlaceOut

HOME = "home"
_MIB = 1024 * 1024

_tenant = click.option(
    "--tenant", metavar="TENANT", help="Tenant whose folder of the volume to use, if each tenant has one."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A path in the home (`volume` empty) or a volume, as `PLACE:PATH`."""

    volume: str
    path: str

    @property
    def text(self) -> str:
        return f"{self.volume or HOME}:{self.path}"

    def __truediv__(self, name: str) -> Place:
        return Place(self.volume, f"{self.path.rstrip('/')}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class PlaceType(click.ParamType[Place]):
    name = "PLACE:PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """`home:PATH` or `VOLUME:PATH`; without a path, its top folder."""
        if isinstance(value, Place):
            return value
        place, colon, path = str(value).partition(":")
        if not place or "/" in place or not colon:
            self.fail(f"{value!r} has no place; write home:{value} or VOLUME:{value}", param, ctx)
        return Place("" if place == HOME else place, path.strip("/"))


PLACE = PlaceType()


@click.group
def data() -> None:
    """List, upload, download, move and remove files of your home and of volumes.

    Write `home:PATH` for your home and `VOLUME:PATH` for a volume. No session is needed.

    \b
    Examples:
      commonage data ls home:
      commonage data put model.pt datasets:models/
      commonage data get home:results .
    """


def _print_places(places: Sequence[FilePlaceOut]) -> None:
    table = output.table("PLACE", "TENANT", "TITLE", "MODE", "USED", "LEFT", "NOTE", right=("USED", "LEFT"))
    for each in places:
        table.add_row(
            output.text(f"{each.volume or HOME}:"),
            output.text(each.tenant),
            output.text(each.title),
            "rw" if each.writable else "ro",
            "" if each.used_mib is None else output.memory(each.used_mib),
            "" if each.left_mib is None else output.memory(each.left_mib),
            output.text(each.gap.message if each.gap else ""),
        )
    output.console().print(table)


def _print_files(listing: FileList) -> None:
    table = output.table("NAME", "SIZE", "MODIFIED", right=("SIZE",))
    for each in listing.items:
        table.add_row(output.text(_shown(each)), _size(each), output.clock(each.modified_at))
    if listing.items:
        output.console().print(table)
    if listing.left_out:
        click.echo(f"At least {listing.left_out} more are not shown. Use a session to see them.", err=True)


def _shown(file: FileOut) -> str:
    return (
        f"{file.name}/" if file.kind == "folder" else f"{file.name} ({file.kind})" if file.kind != "file" else file.name
    )


def _size(file: FileOut) -> str:
    return (
        ""
        if file.kind != "file"
        else f"{file.size_bytes} B"
        if file.size_bytes < _MIB
        else output.memory(file.size_bytes / _MIB)
    )


def _print_listed(listed: FileList | Sequence[FilePlaceOut]) -> None:
    if isinstance(listed, Sequence):
        _print_places(listed)
    else:
        _print_files(listed)


@data.command("ls")
@click.argument("place", type=PLACE, required=False)
@_tenant
@prints(_print_listed)
def list_files(client: Client, place: Place | None, tenant: str | None) -> FileList | Sequence[FilePlaceOut]:
    """List a folder; without an argument, your home and volumes with the space that they use.

    \b
    Examples:
      commonage data ls
      commonage data ls datasets:models
    """
    if place is None:
        return client.file_places()
    return client.files(place.path, volume=place.volume, tenant=tenant)


@data.command("put")
@click.argument("sources", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True, metavar="FILE…")
@click.argument("target", type=PLACE)
@click.option("--replace", is_flag=True, help="Replace files that exist.")
@_tenant
@calls_server
def put(server: Server, sources: tuple[Path, ...], target: Place, replace: bool, tenant: str | None) -> None:
    """Upload files, and folders with their content. Repeat an interrupted upload to continue it.

    A target that is a folder, or ends with a slash, gets each source under its own name. Links in folders are left out.

    \b
    Examples:
      commonage data put model.pt home:
      commonage data put --replace train/ datasets:train
    """
    with connect(server, reconnect_timeout_s=60.0) as client, _progress() as show:
        into = target.path == "" or len(sources) > 1 or _is_folder(client, target, tenant)
        for source in sources:
            there = target / source.absolute().name if into else target
            for file, place in _files_to_send(client, source, there, tenant):
                client.upload(
                    file, place.path, volume=place.volume, tenant=tenant, replace=replace,
                    on_progress=show(place.text),
                )  # fmt: skip
                click.echo(f"{file} -> {place.text}")


def _is_folder(client: Client, place: Place, tenant: str | None) -> bool:
    try:
        client.files(place.path, volume=place.volume, tenant=tenant)
    except ApiError as error:
        if error.code in ("file-not-found", "invalid-path"):
            return False
        raise
    return True


def _files_to_send(client: Client, source: Path, target: Place, tenant: str | None) -> Iterator[tuple[Path, Place]]:
    """The files with their places; creates the folders on the way."""
    if not source.is_dir():
        yield source, target
        return
    waiting = [(source, target)]
    while waiting:
        folder, place = waiting.pop()
        if not _is_folder(client, place, tenant):
            client.make_folder(place.path, volume=place.volume, tenant=tenant)
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), place / entry.name))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path), place / entry.name
            else:
                click.echo(f"left out: {entry.path} is a link or a special file", err=True)


@data.command("get")
@click.argument("sources", type=PLACE, nargs=-1, required=True)
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--replace", is_flag=True, help="Replace files that exist.")
@_tenant
@calls_server
def get(server: Server, sources: tuple[Place, ...], target: Path, replace: bool, tenant: str | None) -> None:
    """Download files, and folders with their content. Repeat an interrupted download to continue it.

    \b
    Examples:
      commonage data get home:results/model.pt .
      commonage data get datasets:train data/train
    """
    if len(sources) > 1 and not target.is_dir():
        raise Failure(f"{target} is not a folder, and several files are to go there; create it first", MISUSED)
    with connect(server, reconnect_timeout_s=60.0) as client, _progress() as show:
        for source in sources:
            there = target / (source.name or source.volume or HOME) if target.is_dir() else target
            for place, file in _files_to_get(client, source, there, tenant):
                if file.exists() and not replace:
                    raise Failure(f"{file} exists; give --replace, or another name", MISUSED)
                client.download(
                    place.path, file, volume=place.volume, tenant=tenant, on_progress=show(place.text)
                )  # fmt: skip
                click.echo(f"{place.text} -> {file}")


def _files_to_get(client: Client, source: Place, target: Path, tenant: str | None) -> Iterator[tuple[Place, Path]]:
    """The files with their names here; creates the folders on the way."""
    if not _is_folder(client, source, tenant):
        yield source, target
        return
    waiting = [(source, target)]
    while waiting:
        place, folder = waiting.pop()
        folder.mkdir(exist_ok=True)
        listing = client.files(place.path, volume=place.volume, tenant=tenant)
        if listing.left_out:
            click.echo(f"left out: at least {listing.left_out} entries of {place.text} that are not listed", err=True)
        for each in listing.items:
            if each.kind == "folder":
                waiting.append((place / each.name, folder / each.name))
            elif each.kind == "file":
                yield place / each.name, folder / each.name
            else:
                click.echo(f"left out: {(place / each.name).text} is a link or a special file", err=True)


@data.command("import")
@click.argument("source", metavar="s3://BUCKET/PREFIX")
@click.argument("target", type=PLACE)
@click.option("--endpoint", metavar="URL", envvar="AWS_ENDPOINT_URL", help="Address of the S3 server.  [default: AWS]")
@click.option("--region", envvar="AWS_DEFAULT_REGION", default="us-east-1", show_default=True, help="Region.")
@click.option("--environment", "-e", metavar="NAME", help="Environment of the job. It needs python3.")
@click.option("--detach", "-d", is_flag=True, help="Print the id of the job, and do not follow it.")
@_tenant
@calls_server
def import_s3(server: Server, source: str, target: Place, tenant: str | None, **options: Any) -> None:
    """Copy the objects of an S3 bucket into your home or a volume, by a job. Ctrl-C leaves it running.

    The keys come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and become secrets of the job.
    Objects that already exist with the same size are skipped.

    \b
    Example:
      commonage data import s3://lab-data/train datasets:train
    """
    from commonage.sdk import s3_import
    from commonage.sdk.calls import given
    from commonage.wire.workloads import SubmitIn

    bucket = source.removeprefix("s3://").partition("/")[0]
    if not source.startswith("s3://") or not bucket:
        raise Failure(f"{source!r} is no S3 address; write s3://BUCKET/PREFIX", MISUSED)
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    variable = f"COMMONAGE_VOLUME_{re.sub('[^A-Z0-9]', '_', target.volume.upper())}" if target.volume else "HOME"
    program = Path(s3_import.__file__).read_text(encoding="utf-8")
    ask: dict[str, Any] = {
        "command": ["python3", "-c", program, source, variable, *([target.path] if target.path else [])],
        "name": f"import-{bucket}"[:64],
        "volumes": [f"{target.volume}:rw"] if target.volume else [],
        "variables": {"AWS_DEFAULT_REGION": options["region"], **given(AWS_ENDPOINT_URL=options["endpoint"])},
        "secrets": {name: os.environ[name] for name in keys if os.environ.get(name)},
        **given(environment=options["environment"], tenant=tenant),
    }
    with connect(server, reconnect_timeout_s=60.0) as client:
        made = client.submit(SubmitIn(**ask)).workload
        if options["detach"]:
            click.echo(made.id)
            return
        click.echo(f"commonage: {made.id}", err=True)
        sys.exit(follow(client, made))


@data.command("rm")
@click.argument("places", type=PLACE, nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_tenant
@calls_server
def remove(server: Server, places: tuple[Place, ...], yes: bool, tenant: str | None) -> None:
    """Delete files, and folders with their content, for good.

    \b
    Example:
      commonage data rm home:old-results
    """
    if not yes:
        click.confirm(f"Delete {', '.join(one.text for one in places)} for good?", abort=True)
    with connect(server) as client:
        for place in places:
            client.remove_file(place.path, volume=place.volume, tenant=tenant)
            click.echo(f"Deleted {place.text}.")


@data.command("mkdir")
@click.argument("place", type=PLACE)
@_tenant
@calls_server
def make_folder(server: Server, place: Place, tenant: str | None) -> None:
    """Create a folder.

    \b
    Example:
      commonage data mkdir home:results
    """
    with connect(server) as client:
        client.make_folder(place.path, volume=place.volume, tenant=tenant)


@data.command("mv")
@click.argument("place", type=PLACE)
@click.argument("to", metavar="NEW-PATH")
@_tenant
@calls_server
def move(server: Server, place: Place, to: str, tenant: str | None) -> None:
    """Rename or move a file or folder within the home or volume. Nothing is replaced.

    \b
    Example:
      commonage data mv home:results results-may
    """
    with connect(server) as client:
        client.move_file(place.path, to, volume=place.volume, tenant=tenant)


@contextmanager
def _progress() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Shows the percentage of the current file, in a terminal only."""
    line = StatusLine()

    def of(name: str) -> Callable[[int, int], None]:
        def show(done: int, size: int) -> None:
            if os.isatty(2):
                line.update(f"{name} {done / size:.0%} of {output.memory(size / _MIB)}" if size else name)

        return show

    try:
        yield of
    finally:
        line.clear()
