"""Finds the processes of an attempt in /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _marked(attempt: str) -> Iterator[tuple[int, list[bytes]]]:
    """(pid, variables) of every process that carries the attempt's mark, the process engine's shim excepted."""
    mark = f"COMMONAGE_ATTEMPT_ID={attempt}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if mark in variables and b"shim.sh" not in (entry / "cmdline").read_bytes():
                yield int(entry.name), variables


def processes_of(attempt: str) -> list[int]:
    return [pid for pid, _ in _marked(attempt)]


def commands_beside(attempt: str) -> list[int]:
    """The processes of commands run in the attempt by `Engine.exec`."""
    return [pid for pid, words in _marked(attempt) if any(word.startswith(b"COMMONAGE_EXEC=") for word in words)]
