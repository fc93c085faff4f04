"""Which server, and with what token: flags, variables, the data folder of a server on this machine, what login kept.

Used by `connection` and `login`. The file is ~/.config/commonage/credentials.json, 0600.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.cli.failures import MISUSED, Failure

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Kept:
    """What login kept: tokens by address, and the address used when none is named."""

    tokens: dict[str, str]
    default_url: str | None


def credentials_file() -> Path:
    """Where login keeps tokens."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "commonage" / "credentials.json"


def tidy(url: str) -> str:
    """An address as we compare it: with a scheme, without a path of ours or a slash at the end."""
    url = url.strip()
    if "://" not in url:
        url = f"http://{url}"
    return url.split("/services/commonage", maxsplit=1)[0].removesuffix("/hub").rstrip("/")


def load() -> Kept:
    """What is kept; nothing if there is no file. Raises Failure for a file that others may read or that is torn."""
    path = credentials_file()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise Failure(f"{path} can be read by others (mode {mode:03o}); run: chmod 600 {path}", MISUSED)
        found = json.loads(path.read_text(encoding="utf-8"))
        tokens = {str(url): str(token) for url, token in found["tokens"].items()}
        return Kept(tokens, found.get("default"))
    except FileNotFoundError:
        return Kept({}, None)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failure(f"{path} is damaged; remove it and run `commonage login`", MISUSED) from None


def keep(url: str, token: str) -> Path:
    """Keep a token and make its address the default. Returns the file. Raises Failure."""
    kept, path = load(), credentials_file()
    content = {"default": url, "tokens": {**kept.tokens, url: token}}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
        Path(fresh).replace(path)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
    return path


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask and as whom; `token` is None where none is known."""

    url: str
    token: str | None


def find_server(url: str | None, token: str | None, data_dir: Path | None) -> Server:
    """The server that is meant. Raises Failure for a data folder without a running server."""
    if data_dir is not None:
        here = running_at(data_dir)
        url = url or here["url"]
        return Server(tidy(url), token or _operator_token(data_dir))
    kept = load()
    url = tidy(url or os.environ.get("COMMONAGE_URL") or kept.default_url or DEFAULT_URL)
    return Server(url, token or os.environ.get("COMMONAGE_TOKEN") or kept.tokens.get(url))


def running_at(data_dir: Path) -> dict[str, Any]:
    """What the server on this data folder says of itself. Raises Failure if none says anything."""
    lock = data_dir / "commonage.lock"
    try:
        found: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"no server's data folder can be read at {data_dir}: {error.strerror}", MISUSED) from error
    except ValueError:
        found = {}
    if not found.get("hub_url"):
        raise Failure(f"no server runs on {data_dir}; start it with: commonage up --data-dir {data_dir}", 3)
    return found


def _operator_token(data_dir: Path) -> str:
    """The server's own token for the command line on its node. Raises Failure for those who cannot read it."""
    path = data_dir / "secrets" / "operator_token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Failure(
            f"{path} cannot be read: {error.strerror}; run this as the user of the server, or give a --token", MISUSED
        ) from error
