"""Output of child processes: lines are assembled from pieces, kept in a file, and sorted by level."""

import asyncio
import logging
from pathlib import Path

import pytest

from commonage.server.processes.child_output import ChildOutput

pytestmark = pytest.mark.anyio


async def pumped(output: ChildOutput, *chunks: bytes) -> None:
    stream = asyncio.StreamReader()
    for chunk in chunks:
        stream.feed_data(chunk)
    stream.feed_eof()
    await output.pump(stream)


async def test_lines_reach_file_and_memory(tmp_path: Path) -> None:
    output = ChildOutput("hub", tmp_path / "logs" / "hub.log")
    await pumped(output, b"one\r\ntw", b"o\nbroken \xff\nlast without end")
    output.close()
    assert output.last_lines() == ["one", "two", "broken \ufffd", "last without end"]
    assert (tmp_path / "logs" / "hub.log").read_text().splitlines() == output.last_lines()


async def test_of_a_traceback_only_the_end_is_for_people(tmp_path: Path) -> None:
    output = ChildOutput("hub", tmp_path / "hub.log")
    said = """[E 2026-11-21 JupyterHub app:4090]
    Traceback (most recent call last):
      File "app.py", line 1, in initialize
        self.init_db()
    sqlite3.DatabaseError: database disk image is malformed
"""
    await pumped(output, said.encode())
    assert output.last_lines() == [
        "[E 2026-11-21 JupyterHub app:4090]",
        "    sqlite3.DatabaseError: database disk image is malformed",
    ]
    assert "init_db" in (tmp_path / "hub.log").read_text()


async def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    output = ChildOutput("hub", tmp_path / "hub.log")
    await pumped(output, b"x" * 1_000_000)
    assert sum(len(line) for line in output.last_lines()) <= 1_000_000
    assert len(output.last_lines()) > 1


async def test_seen_waits_for_the_next_time(tmp_path: Path) -> None:
    output = ChildOutput("hub", tmp_path / "hub.log")
    for _ in range(2):
        waiting = asyncio.create_task(output.seen("is now running"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await pumped(output, b"JupyterHub is now running at x\n")
        await waiting


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("[I 2026-11-21 09:00:00.000 JupyterHub app:1] fine", logging.DEBUG),
        ("[W 2026-11-21 09:00:00.000 JupyterHub web:2] 403 GET /", logging.INFO),
        ("[E 2026-11-21 09:00:00.000 JupyterHub app:3] broken", logging.WARNING),
        ("2026-11-21T09:00:00Z ERR no such file", logging.WARNING),
        ("Traceback (most recent call last):", logging.DEBUG),
    ],
)
async def test_levels(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, level: int) -> None:
    output = ChildOutput("hub", tmp_path / "hub.log")
    with caplog.at_level(logging.DEBUG, logger="commonage.child.hub"):
        await pumped(output, line.encode())
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, line)]
