"""Connects a command to its server: the options, the address and token, and the search for a workload.

Address and token come from options, variables, the data folder of a local server, or the file that `login` saves:
~/.config/commonage/credentials.json, mode 0600.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commonage.cli import output
from commonage.cli.errors import MISUSED, UNREACHABLE, Failure

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
ID_LENGTH = 13
LIVE = ("held", "queued", "starting", "running")
_WARN_S = 3 * 24 * 3600  # before a saved token expires
_MAX_SEARCHED = 2000  # newest workloads in which an ended one is searched

_OPTIONS = (
    click.option("--url", metavar="URL", help="Address of the server.  [default: COMMONAGE_URL, else from login]"),
    click.option("--token", metavar="TOKEN", help="Token to use.  [default: COMMONAGE_TOKEN, else from login]"),
    click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
        help="Connect to the server of this data folder as its operator, who has admin rights but no workloads.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    token: str | None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Saved by `login`: tokens and their expiry (unix seconds) by address, and the default address."""

    tokens: dict[str, str]
    default_url: str | None
    expires_at: dict[str, float] = field(default_factory=dict)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def calls_server(command: F) -> F:
    """Add the options --url, --token and --data-dir. The command gets a `server` instead of the three."""

    @wraps(command)
    def with_server(*args: Any, url: str | None, token: str | None, data_dir: Path | None, **rest: Any) -> Any:
        return command(*args, server=find_server(url, token, data_dir), **rest)

    for option in reversed(_OPTIONS):
        with_server = option(with_server)
    return with_server  # type: ignore[return-value]  # click's options keep the signature


def prints(as_text: Callable[[T], object]) -> Callable[[Callable[..., T]], Callable[..., None]]:
    """Add --json and the options of the server. The command gets a client of the server as its first argument.

    Its result is printed as JSON, or by `as_text`.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., None]:
        @as_json
        @calls_server
        @wraps(command)
        def with_client(*args: Any, server: Server, as_json: bool, **options: Any) -> None:
            with connect(server) as client:
                result = command(client, *args, **options)
            if as_json:
                output.print_json(result)
            else:
                as_text(result)

        return with_client

    return decorate


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


def find_server(url: str | None, token: str | None, data_dir: Path | None) -> Server:
    """The server of these options. Raises Failure for a data folder without a running server."""
    if data_dir is not None:
        running = running_at(data_dir)
        return Server(normalize_url(url or running["url"]), token or _operator_token(data_dir))
    saved = load()
    url = normalize_url(url or os.environ.get("COMMONAGE_URL") or saved.default_url or DEFAULT_URL)
    given = token or os.environ.get("COMMONAGE_TOKEN")
    if not given and url in saved.tokens and url in saved.expires_at:
        _warn_before_expiry(url, saved.expires_at[url])
    return Server(url, given or saved.tokens.get(url))


def _warn_before_expiry(url: str, expires_at: float) -> None:
    left_s = expires_at - time.time()
    if left_s > _WARN_S:
        return
    ends = f"expires on {output.clock(expires_at)}" if left_s > 0 else f"expired on {output.clock(expires_at)}"
    click.echo(f"Your token for {url} {ends}. Get a new one at {url}/hub/token, then: commonage login {url}", err=True)


def normalize_url(url: str) -> str:
    """The address with a scheme, without our own path and without a slash at the end."""
    url = url.strip()
    if "://" not in url:
        url = f"http://{url}"
    return url.split("/services/commonage", maxsplit=1)[0].removesuffix("/hub").rstrip("/")


def running_at(data_dir: Path) -> dict[str, Any]:
    """The addresses of the server that runs on this data folder. Raises Failure if none runs."""
    try:
        addresses: dict[str, Any] = json.loads((data_dir / "commonage.lock").read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(
            f"{data_dir} is not the data folder of a server, or cannot be read: {error.strerror}", MISUSED
        ) from error
    except ValueError:
        addresses = {}
    if not addresses.get("hub_url"):
        raise Failure(f"no server runs on {data_dir}. Start it with: commonage up --data-dir {data_dir}", UNREACHABLE)
    return addresses


def _operator_token(data_dir: Path) -> str:
    path = data_dir / "secrets" / "operator_token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Failure(
            f"{path} cannot be read: {error.strerror}. Run this as the user of the server, or give a --token.", MISUSED
        ) from error


def credentials_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "commonage" / "credentials.json"


def load() -> Credentials:
    """The saved credentials; empty without a file. Raises Failure if others can read the file, or if it is damaged."""
    path = credentials_file()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise Failure(f"{path} can be read by others (mode {mode:03o}). Run: chmod 600 {path}", MISUSED)
        saved = json.loads(path.read_text(encoding="utf-8"))
        tokens = {str(url): str(token) for url, token in saved["tokens"].items()}
        expires_at = {str(url): float(at) for url, at in saved.get("expires_at", {}).items()}
        return Credentials(tokens, saved.get("default"), expires_at)
    except FileNotFoundError:
        return Credentials({}, None)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failure(f"{path} is damaged. Remove it and run `commonage login`.", MISUSED) from None


def save(url: str, token: str, expires_at: float | None = None) -> Path:
    """Save a token with its expiry, and make its address the default. Returns the file. Raises Failure."""
    saved, path = load(), credentials_file()
    ends = {other: at for other, at in saved.expires_at.items() if other != url}
    if expires_at is not None:
        ends[url] = expires_at
    content = {"default": url, "tokens": {**saved.tokens, url: token}, "expires_at": ends}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
        Path(fresh).replace(path)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
    return path


def find_workload(client: Client, text: str) -> WorkloadOut:
    """Find a workload by its id, the end of its id, or the name of a live one. Raises Failure, ApiError."""
    text = text.strip()
    like_id = text.isalnum() and text.isascii()
    text = text.lower() if like_id else text
    if not text:
        raise Failure("an id is needed. `commonage ps` lists the ids of your workloads.", MISUSED)
    if len(text) == ID_LENGTH and like_id:
        return client.workload(text)
    matches = [each for each in client.workloads(state=list(LIVE)) if each.id.endswith(text) or each.name == text]
    matches = matches or [each for each in islice(client.workloads(), _MAX_SEARCHED) if each.id.endswith(text)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise Failure(
            f"no workload of yours has the name {text!r} or an id that ends with it. See `commonage ps --all`.", MISUSED
        )
    listed = ", ".join(f"{each.id} ({each.name})" if each.name else each.id for each in matches[:5])
    more = f", and {len(matches) - 5} more" if len(matches) > 5 else ""
    raise Failure(f"{text!r} is ambiguous: {listed}{more}. Write more of the id.", MISUSED)
