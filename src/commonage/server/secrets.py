"""The secrets of an installation: created at the first start in DATA_DIR/secrets (0700), one file (0600) each.

Used by the bootstrap and by commands on the server's machine. Children get the path of the folder, never a value.
"""

from __future__ import annotations

import os
import secrets as chance
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from commonage.link.certificate_authority import CertificateAuthority
from commonage.server import ServerError
from commonage.server.data_dir import write_private

_FOLDER = "secrets"
# JupyterHub's own rules for its shared-password authenticator.
_MIN_LENGTH = {"admin": 32, "users": 8}
_TOKENS = ("hub_service_token", "spawner_token", "operator_token", "proxy_token", "cookie_secret", "registry_password")
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that look alike


class SecretsError(ServerError):
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


def _password_of(groups: int) -> Callable[[], str]:
    """A password that a person can read out and type: groups of four letters."""
    return lambda: "-".join("".join(chance.choice(_LETTERS) for _ in range(4)) for _ in range(groups))


_MAKERS: Mapping[str, Callable[[], str]] = {
    "admin_password": _password_of(8),  # 39 characters, 158 bits
    "users_password": _password_of(4),  # 19 characters, 79 bits
    **dict.fromkeys(_TOKENS, lambda: chance.token_hex(32)),
}


def secrets_folder(data_dir: Path, given: Path | None) -> Path:
    return (given or data_dir / _FOLDER).absolute()


def read_given_secrets(folder: Path) -> Secrets:
    """The secrets that others put into `folder`: a mounted Secret. Nothing is made or changed.

    Kubernetes lets the pod's group read them. Raises SecretsError if one is missing, or if everybody can read it.
    """
    missing = [name for name in _MAKERS if not (folder / name).is_file()]
    if missing:
        raise SecretsError(
            f"The folder of secrets {folder} has no {', '.join(missing)}. Put each into a file of that name, as "
            "docs/operate/kubernetes-deploy lists them."
        )
    values = {name: read_given_secret(folder, name) for name in _MAKERS}
    _check_passwords(values, {f"{account}_password": folder / f"{account}_password" for account in _MIN_LENGTH}, folder)
    return Secrets(folder=folder, **values)


def read_given_secret(folder: Path, name: str) -> str:
    """Raises SecretsError."""
    path = folder / name
    _must_be_private(path, everybody=0o007)
    if not (value := _text(path).strip()):
        raise SecretsError(f"{path} is empty. Give it a value; for a token, 64 random hexadecimal digits.")
    return value


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
        account, equals, password = line.partition("=")
        if not equals or account.strip() not in _MIN_LENGTH:
            raise SecretsError(f"{path}, line {number}: expected admin=PASSWORD or users=PASSWORD.")
        found[f"{account.strip()}_password"] = password.strip()
    if not found:
        raise SecretsError(f"{path} sets no password. Write the lines admin=… and users=… into it.")
    return found


def _check_passwords(values: Mapping[str, str], given: Mapping[str, Path], folder: Path) -> None:
    for account, least in _MIN_LENGTH.items():
        name = f"{account}_password"
        length, where = len(values[name]), given.get(name)
        if length < least:
            raise SecretsError(
                f"The {account} password ({where or folder / name}) has {length} characters. JupyterHub requires at "
                f"least {least}. Set a longer one{' there' if where else ' with --password-file'}, or remove "
                f"{'that line' if where else 'the file'} for a new one."
            )
    if values["admin_password"] == values["users_password"]:
        raise SecretsError("The admin password and the users' password are equal. Set different ones.")


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SecretsError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    _must_be_private(folder)


def _read_or_make(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write(path, make())
    _must_be_private(path)
    value = _text(path).strip()
    if not value:
        raise SecretsError(f"{path} is empty. Remove it; the next start creates a new one.")
    return value


def _must_be_private(path: Path, everybody: int = 0o077) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise SecretsError(f"Cannot read {path}: {error.strerror}.") from error
    mode = stat.S_IMODE(found.st_mode)
    if mode & everybody:
        wanted = "700" if path.is_dir() else "600"
        raise SecretsError(f"Other users can read {path} (mode {mode:03o}). Run: chmod {wanted} {path}")
    if found.st_uid not in {0, os.geteuid()}:  # root may have created it for the server
        raise SecretsError(
            f"{path} belongs to another user (uid {found.st_uid}). Change its owner to the user of the server."
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsError(f"Cannot read {path}: {error}") from error


def _write(path: Path, value: str) -> None:
    try:
        write_private(path, value + "\n")
    except OSError as error:
        raise SecretsError(f"cannot write {path}: {error.strerror}") from error


def authority_of(data_dir: Path) -> CertificateAuthority:
    """The certificate authority of this data folder, created if it does not exist. Raises AuthorityError."""
    return CertificateAuthority.open(data_dir.absolute() / "authority")
