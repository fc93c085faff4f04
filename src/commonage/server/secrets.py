"""The secrets of an installation: made at the first start, in DATA_DIR/secrets (0700), a file (0600) each.

Called by the server's bootstrap and by the commands that run on the server's own machine. `server.hub` hands them
to the children: it passes the folder, never a value.
"""

from __future__ import annotations

import os
import secrets as chance
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = "secrets"
# JupyterHub's own rules for its shared-password authenticator.
_LEAST_LENGTH = {"admin": 32, "users": 8}
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that look alike


class SecretsError(RuntimeError):
    """The secrets cannot be used; the message says which file, and what to do."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """All secrets. The hub gets the path `folder` and reads the files itself."""

    folder: Path
    admin_password: str
    users_password: str
    hub_service_token: str
    spawner_token: str
    operator_token: str
    proxy_token: str
    cookie_secret: str
    registry_password: str

    def __repr__(self) -> str:
        return f"Secrets({self.folder})"  # a log line or a traceback must not show them


def _words(groups: int) -> Callable[[], str]:
    """A password that a person can read out and type: groups of four letters."""
    return lambda: "-".join("".join(chance.choice(_LETTERS) for _ in range(4)) for _ in range(groups))


_MAKERS: Mapping[str, Callable[[], str]] = {
    "admin_password": _words(8),  # 39 characters, 158 bits
    "users_password": _words(4),  # 19 characters, 79 bits
    "hub_service_token": lambda: chance.token_hex(32),
    "spawner_token": lambda: chance.token_hex(32),
    "operator_token": lambda: chance.token_hex(32),
    "proxy_token": lambda: chance.token_hex(32),
    "cookie_secret": lambda: chance.token_hex(32),
    "registry_password": lambda: chance.token_hex(32),
}


def load_secrets(data_dir: Path, password_file: Path | None = None) -> Secrets:
    """The secrets of this data folder; missing ones are made.

    `password_file` has two lines, `admin=…` and `users=…`; either may be missing. Its values replace the stored
    ones. Raises SecretsError if a file can be read by others, or a password is too short for JupyterHub.
    """
    folder = data_dir / _FOLDER
    _private_folder(folder)
    given = read_password_file(password_file) if password_file else {}
    kept = {name: _read_or_make(folder / name, make) for name, make in _MAKERS.items() if name not in given}
    values = {**kept, **given}
    # Before anything is written: a refused password must not block the next start.
    _check_passwords(values, {name: password_file or folder / name for name in given}, folder)
    for name, value in given.items():
        _write(folder / name, value)
    return Secrets(folder=folder, **values)


def read_password_file(path: Path) -> dict[str, str]:
    """The passwords of a password file: `admin_password`, `users_password` or both. Raises SecretsError."""
    _must_be_private(path)
    found: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        who, equals, password = line.partition("=")
        if not equals or who.strip() not in _LEAST_LENGTH:
            raise SecretsError(f"{path}, line {number}: expected admin=PASSWORD or users=PASSWORD")
        found[f"{who.strip()}_password"] = password.strip()
    if not found:
        raise SecretsError(f"{path} sets no password; write admin=… and users=… into it, a line each")
    return found


def _check_passwords(values: Mapping[str, str], given: Mapping[str, Path], folder: Path) -> None:
    for who, least in _LEAST_LENGTH.items():
        name = f"{who}_password"
        length, where = len(values[name]), given.get(name)
        if length < least:
            raise SecretsError(
                f"the {who} password ({where or folder / name}) has {length} characters, JupyterHub wants {least} or "
                f"more; {'write' if where else 'give'} a longer one{' there' if where else ' with --password-file'}, "
                f"or remove {'that line' if where else 'the file'} for a new one"
            )
    if values["admin_password"] == values["users_password"]:
        raise SecretsError("the admin password and the users' password are the same; they must differ")


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SecretsError(f"cannot make the folder {folder}: {error.strerror}") from error
    _must_be_private(folder)


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write(path, make())
    _must_be_private(path)
    value = _text(path).strip()
    if not value:
        raise SecretsError(f"{path} is empty; remove it to have a new one made")
    return value


def _must_be_private(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise SecretsError(f"cannot read {path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        wanted = "700" if path.is_dir() else "600"
        raise SecretsError(f"{path} can be read by others (mode {mode:03o}); run: chmod {wanted} {path}")
    if found.st_uid not in {0, os.geteuid()}:  # root may have created it for the server
        raise SecretsError(f"{path} belongs to another user (uid {found.st_uid}) than the one who starts the server")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsError(f"cannot read {path}: {error}") from error


def _write(path: Path, value: str) -> None:
    """Write the file atomically. It is never readable by others, not even for an instant."""
    try:
        # mkstemp makes it 0600.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(value + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        raise SecretsError(f"cannot write {path}: {error.strerror}") from error
