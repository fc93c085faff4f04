"""Finds the server and the token: in options, variables, the data folder of a local server, or the saved credentials.

Used by `connection` and `login`. The file is ~/.config/commonage/credentials.json, mode 0600.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.cli.errors import MISUSED, Failure

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What `login` saved: tokens by address, and the default address."""

    tokens: dict[str, str]
    default_url: str | None


def credentials_file() -> Path:
    """The file in the configuration folder of the user."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "commonage" / "credentials.json"


def normalize_url(url: str) -> str:
    """The address with a scheme, without our own path and without a slash at the end."""
    url = url.strip()
    if "://" not in url:
        url = f"http://{url}"
    return url.split("/services/commonage", maxsplit=1)[0].removesuffix("/hub").rstrip("/")


def load() -> Credentials:
    """The saved credentials; empty without a file. Raises Failure if others can read the file, or if it is damaged."""
    path = credentials_file()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise Failure(f"{path} can be read by others (mode {mode:03o}). Run: chmod 600 {path}", MISUSED)
        found = json.loads(path.read_text(encoding="utf-8"))
        tokens = {str(url): str(token) for url, token in found["tokens"].items()}
        return Credentials(tokens, found.get("default"))
    except FileNotFoundError:
        return Credentials({}, None)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", MISUSED) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failure(f"{path} is damaged. Remove it and run `commonage login`.", MISUSED) from None


def save(url: str, token: str) -> Path:
    """Save a token and make its address the default. Returns the file. Raises Failure."""
    saved, path = load(), credentials_file()
    content = {"default": url, "tokens": {**saved.tokens, url: token}}
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
    """The address of a server, and a token if one is known."""

    url: str
    token: str | None


def find_server(url: str | None, token: str | None, data_dir: Path | None) -> Server:
    """The server of these options. Raises Failure for a data folder without a running server."""
    if data_dir is not None:
        running = running_at(data_dir)
        url = url or running["url"]
        return Server(normalize_url(url), token or _operator_token(data_dir))
    saved = load()
    url = normalize_url(url or os.environ.get("COMMONAGE_URL") or saved.default_url or DEFAULT_URL)
    return Server(url, token or os.environ.get("COMMONAGE_TOKEN") or saved.tokens.get(url))


def running_at(data_dir: Path) -> dict[str, Any]:
    """The addresses of the server that runs on this data folder. Raises Failure if none runs."""
    lock = data_dir / "commonage.lock"
    try:
        found: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(
            f"{data_dir} is not the data folder of a server, or cannot be read: {error.strerror}", MISUSED
        ) from error
    except ValueError:
        found = {}
    if not found.get("hub_url"):
        raise Failure(f"no server runs on {data_dir}. Start it with: commonage up --data-dir {data_dir}", 3)
    return found


def _operator_token(data_dir: Path) -> str:
    """The token of the server for the command line on its machine. Raises Failure if it cannot be read."""
    path = data_dir / "secrets" / "operator_token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Failure(
            f"{path} cannot be read: {error.strerror}. Run this as the user of the server, or give a --token.", MISUSED
        ) from error
