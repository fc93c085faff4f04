"""Databases with the current schema, as copies of one that was migrated once in each process: a fifth of the time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fakes.waiting import in_thread

from commonage.store.upgrade import upgrade
from commonage.store.urls import sqlite_url


def migrated_sqlite(path: Path) -> str:
    """Make a database of this name; its URL."""
    path.touch(mode=0o600)
    path.write_bytes(_contents())
    return sqlite_url(path)


@cache
def _contents() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "commonage.db"
        in_thread(upgrade(sqlite_url(path)))
        return path.read_bytes()
