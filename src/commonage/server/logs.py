"""The server's log, and the lines that `commonage up` prints.

All records go to logs/server.log, as text or JSON with their `extra` fields; warnings and errors also to the terminal.
"""

from __future__ import annotations

import errno
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from commonage.server.secrets import Secrets
from commonage.server.settings.settings import Settings
from commonage.wire.hub import LTI_CONFIG_PATH

_FILE_BYTES = 20 * 1024 * 1024
_FILES_KEPT = 5
# The fields of every record; all others were given as `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Verbose, and the server logs the same events better itself.
_QUIET = ("httpx2", "httpcore2", "aiosqlite", "alembic", "asyncio", "uvicorn")


def set_up(logs: Path, level: str, form: str, terminal_level: int = logging.WARNING) -> None:
    """Configure logging. Raises OSError if the file cannot be written."""
    file = _File(logs / "server.log", maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8")
    file.setFormatter(JsonLines() if form == "json" else TextLines())
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(terminal_level)
    terminal.setFormatter(JsonLines() if form == "json" else Short())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(file)
    root.addHandler(terminal)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """On a full disk, the file lacks records. A traceback of each would bury what the terminal gets."""
        error = sys.exception()
        if not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            super().handleError(record)


def extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


class TextLines(logging.Formatter):
    """`2026-11-21T09:00:00.123Z INFO commonage.control: started workload=… node=…`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        given = "".join(f" {name}={_value(value)}" for name, value in extras(record).items())
        line = f"{at} {record.levelname} {record.name}: {_one_line(record.getMessage())}{given}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Short(logging.Formatter):
    """For the terminal: the message without a traceback, which is in the file."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")  # local time
        error = record.exc_info[1] if record.exc_info else None
        cause = f" ({_named(error)}; more in logs/server.log)" if error else ""
        return f"{at} {record.levelname.lower()}: {_one_line(record.getMessage() + cause)}"


def _named(error: BaseException) -> str:
    """Its type and text; for a group, those of the errors in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_named(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _one_line(text: str) -> str:
    """Some messages contain text of users and their programs, which must not look like other lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(c in text for c in ' "=')
    return text if plain else _one_line(json.dumps(text, ensure_ascii=False))


class Terminal:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print that a step of the start is done, and its duration."""
        began = time.monotonic()
        if sys.stdout.isatty():
            print(f"  {name} …", end="\r", flush=True)  # the next line overwrites it
        yield
        self.line(f"  {name:<26} ready after {time.monotonic() - began:.1f} s")

    def ready(self, url: str, settings: Settings, secrets: Secrets, *, first: bool) -> None:
        self.line(f"\n{settings.name} is ready after {time.monotonic() - self._began:.1f} s:\n\n    {url}/\n")
        for line in sign_in(url, settings, secrets, first=first):
            self.line(f"    {line}")
        self.line()


def sign_in(url: str, settings: Settings, secrets: Secrets, *, first: bool) -> list[str]:
    """Lines with the accounts and passwords for sign-in. Passwords are shown only once, when they are made."""
    if settings.authenticator_class != "shared-password":
        # `admin` is no user there (see `hub.config`).
        named = ", ".join(name for name in settings.admin_users if name != "admin")
        admins = named or "none, unless hub_config sets some"
        lines = [f"Sign in with {settings.authenticator_class}; admins: {admins}."]
        if settings.authenticator_class == "lti":
            lines.append(f"Addresses for the learning platform: {url}{LTI_CONFIG_PATH}")
        return lines
    admins = " or ".join(settings.admin_users)
    if not first:
        return [
            f"Sign in as {admins}, or as any other user (alice, bob, …).",
            f"Passwords: {secrets.folder}/admin_password, {secrets.folder}/users_password",
        ]
    return [
        f"Sign in as {admins:<22} password {secrets.admin_password}",
        f"or as any user (alice, bob, …)     password {secrets.users_password}",
        f"The passwords are stored in {secrets.folder}/ and are not shown again.",
    ]
