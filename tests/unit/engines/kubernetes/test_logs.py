"""The copy of a Pod's output is the output, whatever is interrupted and wherever chunks end."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.logs import MISSING, LogCopy, LogPosition, StampedLines
from commonage.engines.rundir.runs import RunFolder

pytestmark = pytest.mark.anyio
LINES = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b" "))))


def stamped(lines: list[tuple[int, bytes]]) -> list[tuple[str, bytes]]:
    """Lines with time stamps that never fall: fractions of different lengths, some the same."""
    at, made = 0, []
    for later, text in lines:
        at += later
        fraction = f".{at:03d}".rstrip("0").rstrip(".")
        made.append((f"2026-01-01T00:00:00{fraction}Z", text + b"\n"))
    return made


def written(lines: list[tuple[str, bytes]]) -> bytes:
    return b"".join(stamp.encode() + b" " + text for stamp, text in lines)


@given(lines=LINES, cut=st.integers(0, 400), size=st.integers(1, 9))
def test_goes_on_where_it_was_interrupted(lines: list[tuple[int, bytes]], cut: int, size: int) -> None:
    whole = stamped(lines)
    data = written(whole)
    boundary = data.rfind(b"\n", 0, min(cut, len(data))) + 1
    position, out = LogPosition(), b""
    for part in (data[:boundary], data):  # the second answer begins at the second of the last stamp: here, at the start
        reader = StampedLines(position)
        for at in range(0, len(part), size):
            out += reader.feed(part[at : at + size])
    assert out == b"".join(text for _, text in whole)
    assert position.size == len(out)


def test_part_that_the_node_no_longer_has_is_noted() -> None:
    position = LogPosition()
    StampedLines(position).feed(b"2026-01-01T00:00:00.1Z one\n")
    out = StampedLines(position).feed(b"2026-01-01T00:00:09.1Z nine\n")
    assert out == MISSING + b"nine\n"


def test_line_without_its_end_is_given() -> None:
    assert StampedLines(LogPosition()).feed(b"2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:00.2Z tw") == b"one\ntw"


async def in_thread(work: Callable[[], object]) -> object:
    return await asyncio.to_thread(work)


async def test_copy_of_a_later_process_goes_on_and_drops_what_was_not_recorded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    answers = [b"2026-01-01T00:00:00.1Z one\n", b"2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:00.2Z two\n"]
    asked = []

    async def fetch(since: str | None, _follow: bool) -> AsyncGenerator[bytes]:
        asked.append(since)
        yield answers[len(asked) - 1]

    await LogCopy(folder, fetch, in_thread).finish(None)  # type: ignore[arg-type]  # any result
    (tmp_path / "log").write_bytes(b"one\nhalf")
    await LogCopy(folder, fetch, in_thread).finish(None)  # type: ignore[arg-type]  # any result
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert asked == [None, "2026-01-01T00:00:00.1Z"]


async def test_end_that_the_node_does_not_give_is_noted(tmp_path: Path) -> None:
    async def fetch(_since: str | None, _follow: bool) -> AsyncGenerator[bytes]:
        raise EngineFailure("the node is away", retryable=True)
        yield b""

    await LogCopy(RunFolder(tmp_path), fetch, in_thread).finish(None)  # type: ignore[arg-type]  # any result
    assert b"the last part of the output is missing" in (tmp_path / "log").read_bytes()
