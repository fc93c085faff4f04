"""The options of every command that calls a server, the client made from them, and the search for a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli.credentials import Server, find_server
from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

F = TypeVar("F", bound=Callable[..., Any])

ID_LENGTH = 13
LIVE = ("held", "queued", "starting", "running")
_MAX_SEARCHED = 2000  # newest workloads in which an ended one is searched

_OPTIONS = (
    click.option("--url", metavar="URL", help="Address of the server.  [default: COMMONAGE_URL, else from login]"),
    click.option("--token", metavar="TOKEN", help="Token to use.  [default: COMMONAGE_TOKEN, else from login]"),
    click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
        help="Call the server that runs on this data folder, as its operator: with admin rights, but no workloads.",
    ),
)  # fmt: skip


def calls_server(command: F) -> F:
    """Add the options --url, --token and --data-dir. The command gets a `server` instead of the three."""

    @wraps(command)
    def with_server(*args: Any, url: str | None, token: str | None, data_dir: Path | None, **rest: Any) -> Any:
        return command(*args, server=find_server(url, token, data_dir), **rest)

    for option in reversed(_OPTIONS):
        with_server = option(with_server)
    return with_server  # type: ignore[return-value]  # click's options keep the signature


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def connect(server: Server, reconnect_timeout_s: float = 3.0) -> Iterator[Client]:
    """A client of the server. It retries for `reconnect_timeout_s` seconds if the server does not answer."""
    if server.token is None:
        raise Failure(
            f"no token for {server.url}. Save one with `commonage login {server.url}`, or give one with --token.",
            MISUSED,
        )
    from commonage.sdk import Client

    with Client(server.url, server.token, reconnect_timeout_s=reconnect_timeout_s) as client:
        yield client


def find_workload(client: Client, text: str) -> WorkloadOut:
    """Find a workload by its id, the end of its id, or the name of a live one. Raises Failure, ApiError."""
    text = text.strip().lower() if _like_id(text) else text.strip()
    if not text:
        raise Failure("an id is needed. `commonage ps` lists the ids of your workloads.", MISUSED)
    if len(text) == ID_LENGTH and _like_id(text):
        return client.workload(text)
    live = [one for one in client.workloads(state=list(LIVE)) if one.id.endswith(text) or one.name == text]
    found = live or [one for one in islice(client.workloads(), _MAX_SEARCHED) if one.id.endswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise Failure(
            f"no workload of yours has the name {text!r} or an id that ends so. See `commonage ps --all`.", MISUSED
        )
    raise Failure(f"{text!r} is ambiguous: {_listed(found)}. Write more of the id.", MISUSED)


def _like_id(text: str) -> bool:
    return text.strip().isalnum() and text.isascii()


def _listed(found: Sequence[WorkloadOut]) -> str:
    shown = ", ".join(f"{one.id} ({one.name})" if one.name else one.id for one in found[:5])
    return f"{shown}, and {len(found) - 5} more" if len(found) > 5 else shown
