"""Copies the output of a child line by line into its own log file (rotated by size) and into the server's log."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path

_LONGEST_LINE = 16 * 1024  # characters; a longer one is cut into several
_FILE_BYTES = 10 * 1024 * 1024
_FILES_KEPT = 3
_LINES_KEPT, _LINES_SHOWN = 200, 20
# JupyterHub says "[W 2026-11-21 ...]", traefik "2026-11-21T09:00:00Z WRN ...",
# Caddy "2026-11-21T09:00:00.000Z\tWARN\t...".
_LEVEL = re.compile(r"^\[([DIWEC]) |^\S+\s(DBG|INF|WRN|ERR|FTL|PNC|WARN|ERROR|FATAL|PANIC)\s")
_LEVELS = dict.fromkeys(("E", "C", "ERR", "FTL", "PNC", "ERROR", "FATAL", "PANIC"), logging.WARNING) | dict.fromkeys(
    ("W", "WRN", "WARN"), logging.INFO
)


class ChildOutput:
    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._log = logging.getLogger(f"commonage.child.{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, delay=True)
        self._last: deque[str] = deque(maxlen=_LINES_KEPT)
        self._awaited: dict[str, asyncio.Event] = {}
        self._quiet = False

    async def pump(self, stream: asyncio.StreamReader) -> None:
        rest = ""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
            self._take(lines)
            if len(rest) > _LONGEST_LINE:
                self._take([rest])
                rest = ""
        if rest:
            self._take([rest])

    async def seen(self, text: str) -> None:
        """Return when the child prints a line that contains `text` after this call."""
        event = self._awaited.setdefault(text, asyncio.Event())
        event.clear()
        await event.wait()

    def last_lines(self) -> list[str]:
        """The last twenty lines that are useful to people, oldest first: of a traceback only its last line."""
        found: list[str] = []
        inside: int | None = None  # indentation of the current traceback
        for line in self._last:
            indented = len(line) - len(line.lstrip())
            if line.lstrip().startswith("Traceback (most recent call last)"):
                inside = indented
            elif line.strip() and (inside is None or indented <= inside):
                inside = None
                found.append(line)
        return found[-_LINES_SHOWN:]

    def be_quiet(self) -> None:
        """Log to the child's file only from now on, because the child is being stopped."""
        self._quiet = True

    def close(self) -> None:
        self._file.close()

    def _take(self, lines: Iterable[str]) -> None:
        for line in (line.rstrip("\r") for line in lines):
            self._last.append(line)
            level = logging.DEBUG if self._quiet else _level(line)
            record = logging.makeLogRecord({"name": self._log.name, "levelno": level, "msg": line})
            self._file.emit(record)
            self._log.log(level, "%s", line, extra={"child": self._name})
            for text, event in self._awaited.items():
                if text in line:
                    event.set()


def _level(line: str) -> int:
    """A child's error is a warning of the server, its warning an info message; the rest is in its file anyway."""
    found = _LEVEL.match(line)
    return _LEVELS.get(found[1] or found[2], logging.DEBUG) if found else logging.DEBUG
