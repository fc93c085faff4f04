"""The options of every verb that asks a server, and the client made from them; ids that people shorten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli.credentials import Server, find_server
from commonage.cli.failures import MISUSED, Failure

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

F = TypeVar("F", bound=Callable[..., Any])

ID_LENGTH = 13
LIVE = ("held", "queued", "starting", "running")
_SEARCHED = 2000  # how far back an ended workload is found by the end of its id

_OPTIONS = (
    click.option("--url", metavar="URL", help="Address of the server.  [COMMONAGE_URL, or what login kept]"),
    click.option("--token", metavar="TOKEN", help="Token to ask with.  [COMMONAGE_TOKEN, or what login kept]"),
    click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
        help="Ask the server that runs on this data folder, as its operator: all that admins may, but no workloads.",
    ),
)  # fmt: skip


def calls_server(verb: F) -> F:
    """Give a verb the options --url, --token and --data-dir; it gets a `server` instead of the three."""

    @wraps(verb)
    def with_server(*args: Any, url: str | None, token: str | None, data_dir: Path | None, **rest: Any) -> Any:
        return verb(*args, server=find_server(url, token, data_dir), **rest)

    for option in reversed(_OPTIONS):
        with_server = option(with_server)
    return with_server  # type: ignore[return-value]  # click's options keep the signature


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@contextmanager
def connect(server: Server, reconnect_timeout_s: float = 3.0) -> Iterator[Client]:
    """A client of the server; it goes on trying for `reconnect_timeout_s` when the server goes away."""
    if server.token is None:
        raise Failure(
            f"no token for {server.url}; keep one with `commonage login {server.url}`, or give one with --token",
            MISUSED,
        )
    from commonage.sdk import Client

    with Client(server.url, server.token, reconnect_timeout_s=reconnect_timeout_s) as client:
        yield client


def find_workload(client: Client, text: str) -> WorkloadOut:
    """The workload that is meant by its id, the end of it, or the name of a live one. Raises Failure, ApiError."""
    text = text.strip().lower() if _like_id(text) else text.strip()
    if not text:
        raise Failure("an id is needed; `commonage ps` shows yours", MISUSED)
    if len(text) == ID_LENGTH and _like_id(text):
        return client.workload(text)
    live = [one for one in client.workloads(state=list(LIVE)) if one.id.endswith(text) or one.name == text]
    found = live or _ended(client, text)
    if len(found) == 1:
        return found[0]
    if not found:
        raise Failure(
            f"no workload of yours is called {text!r}, nor does an id end so; see `commonage ps --all`", MISUSED
        )
    raise Failure(f"{text!r} could be any of: {_listed(found)}; write more of the id", MISUSED)


def _like_id(text: str) -> bool:
    return text.strip().isalnum() and text.isascii()


def _ended(client: Client, text: str) -> list[WorkloadOut]:
    found: list[WorkloadOut] = []
    for number, one in enumerate(client.workloads()):
        if one.id.endswith(text):
            found.append(one)
        if number >= _SEARCHED:
            break
    return found


def _listed(found: Sequence[WorkloadOut]) -> str:
    shown = ", ".join(f"{one.id} ({one.name})" if one.name else one.id for one in found[:5])
    return f"{shown}, and {len(found) - 5} more" if len(found) > 5 else shown
