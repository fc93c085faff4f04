"""The small database of both ends of a site link, on a disk that is full: SQLite reports it as a real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonage.domain.errors import Unavailable
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.site_agent import samples

pytestmark = pytest.mark.anyio
_ROW = ("INSERT INTO samples (round, size) VALUES (?, 4096)", ("x" * 4096,))
_SCHEMA = (
    *samples.SCHEMA,
    "CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, text TEXT)",
    "PRAGMA max_page_count = 64",
)


async def _fill(file: SqliteFile) -> int:
    """Without the way out. How many rounds fitted."""
    written = 0
    with pytest.raises(Unavailable):
        while True:
            await file.write(_ROW)
            written += 1
    return written


async def test_oldest_samples_give_way_when_the_disk_is_full(tmp_path: Path) -> None:
    full = SqliteFile(tmp_path / "site.db", _SCHEMA)
    await full.open()
    fitted = await _fill(full)
    await full.close()
    file = SqliteFile(tmp_path / "site.db", _SCHEMA, samples.ON_FULL)
    await file.open()
    await file.write(("INSERT INTO kept (text) VALUES (?)", ("a start request " * 500,)))
    await file.write(_ROW)
    [(count, oldest, newest)] = await file.read("SELECT count(*), min(id), max(id) FROM samples")
    assert 0 < count <= fitted
    assert oldest > 1
    assert newest == fitted + 1
    assert await file.read("SELECT count(*) FROM kept") == [(1,)]
    await file.close()


async def test_write_that_does_not_fit_leaves_the_file_usable(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "site.db", _SCHEMA)
    await file.open()
    await _fill(file)
    with pytest.raises(Unavailable, match="free some space"):
        await file.write(("INSERT INTO kept (text) VALUES ('first')", ()), _ROW)
    assert await file.read("SELECT count(*) FROM kept") == [(0,)], "all of a write, or nothing"
    await file.write(("DELETE FROM samples", ()))
    await file.write(("INSERT INTO kept (text) VALUES ('second')", ()), _ROW)
    assert await file.read("SELECT text FROM kept") == [("second",)]
    await file.close()


async def test_posted_write_that_does_not_fit_is_repeated_with_the_next_one(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "site.db", _SCHEMA)
    await file.open()
    await _fill(file)
    file.post(("INSERT INTO kept (text) VALUES (?)", ("posted " * 1000,)))
    assert await file.read("SELECT count(*) FROM kept") == [(0,)]
    await file.read("PRAGMA max_page_count = 128")
    await file.write(("DELETE FROM samples WHERE id = 0", ()))
    assert await file.read("SELECT count(*) FROM kept") == [(1,)]
    await file.close()


async def test_posted_write_that_does_not_fit_is_repeated_at_the_end(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "site.db", _SCHEMA)
    await file.open()
    await _fill(file)
    file.post(("INSERT INTO kept (text) VALUES (?)", ("posted " * 1000,)))
    await file.read("PRAGMA max_page_count = 128")
    await file.close()
    again = SqliteFile(tmp_path / "site.db", samples.SCHEMA)
    await again.open()
    assert await again.read("SELECT count(*) FROM kept") == [(1,)]
    await again.close()


async def test_posted_writes_of_one_row_are_kept_once_and_in_their_order(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "site.db", (*_SCHEMA, "CREATE TABLE other (id TEXT PRIMARY KEY, text TEXT)"))
    await file.open()
    await _fill(file)
    upsert, delete = "INSERT OR REPLACE INTO other VALUES (?, ?)", "DELETE FROM other WHERE id = ?"
    for number in range(100):
        file.post((upsert, ("stays", f"{number} " * 3000)), (delete, ("goes",)), (upsert, ("goes", "")))
        file.post((delete, ("stays",)), (delete, ("goes",)), (upsert, ("stays", f"{number} " * 3000)))
    await file.read("PRAGMA max_page_count = 128")
    await file.write((delete, ("unknown",)))
    assert await file.read("SELECT id, text FROM other") == [("stays", "99 " * 3000)]
    await file.close()
