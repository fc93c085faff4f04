"""Cutting output into lines; reading, tailing and bounding a file of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import LogLine
from commonage.engines.rundir import logs as log_limit
from commonage.engines.rundir.logs import LINE_MAX, Lines, cut_log, open_log, read_log
from commonage.files.safe_path import absolute

MIB = 1024 * 1024


def cut(*chunks: bytes, at: int = 0) -> list[LogLine]:
    lines = Lines(at)
    return [line for chunk in chunks for line in lines.feed(chunk)] + list(lines.last())


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_how_the_bytes_arrive_does_not_matter(data: bytes, places: list[int]) -> None:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert cut(*chunks) == cut(data)


@given(st.binary(max_size=300))
def test_every_line_can_be_resumed_from(data: bytes) -> None:
    whole = cut(data)
    for index, line in enumerate(whole):
        assert cut(data[line.offset :], at=line.offset) == whole[index + 1 :]
    if whole:
        assert whole[-1].offset == len(data)


def test_a_line_that_is_too_long_is_cut_with_a_mark() -> None:
    [line, after] = cut(b"x" * LINE_MAX, b"y" * 1000, b"\nafter\n")
    assert line.text == "x" * LINE_MAX + " … (1000 more bytes in this line)"
    assert line.offset == LINE_MAX + 1001
    assert after.text == "after"


def test_invalid_utf8_is_replaced_and_counted_in_bytes() -> None:
    assert cut(b"a\xff\xfeb\n") == [LogLine("a��b", 5)]


def test_carriage_returns_show_what_a_terminal_would() -> None:
    assert [line.text for line in cut(b"10%\r50%\r100%\r\ndone\r\n")] == ["100%", "done"]


def test_a_progress_bar_shows_its_newest_state_while_it_grows() -> None:
    lines = Lines(0)
    assert list(lines.feed(b"10%\r20%\r3")) == []
    assert list(lines.overwritten()) == [LogLine("20%", 8)]
    assert list(lines.overwritten()) == []
    assert list(lines.feed(b"0%\n")) == [LogLine("30%", 12)]


def read(path: Path, **how: int | None) -> list[LogLine]:
    async def collect() -> list[LogLine]:
        reading = read_log(os.open(path, os.O_RDONLY), how.get("offset") or 0, how.get("tail"), False, lambda: True)
        return [line async for line in reading]

    return asyncio.run(collect())


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), max_size=8))
def test_a_tail_is_the_end_of_the_whole(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    whole = read(path)
    assert [line.text for line in whole] == lines
    for tail in range(len(lines) + 2):
        assert read(path, tail=tail) == (whole[-tail:] if tail else [])


def test_a_tail_of_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(5000)))
    assert [line.text.split()[1] for line in read(path, tail=3)] == ["4997", "4998", "4999"]


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo")
    assert [line.text for line in read(path, tail=1)] == ["two"]
    assert [line.text for line in read(path)] == ["one", "two"]


@pytest.mark.anyio
async def test_following_gives_lines_as_they_come_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\nha")
    ended = False
    got: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for line in read_log(os.open(path, os.O_RDONLY), 0, None, True, lambda: ended):
            got.put_nowait(line.text)

    def append(data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    following = asyncio.create_task(follow())
    assert await got.get() == "one"
    append(b"lf\n")
    assert await got.get() == "half"
    append(b"last")
    ended = True
    await following
    assert got.get_nowait() == "last"


def test_a_tail_does_not_go_back_through_a_hole_as_large_as_a_disk(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n")
    with log.open("r+b") as file:
        file.seek(1 << 43)
        file.write(b"\nlast\n")
    assert [line.text for line in read(log, tail=1)] == ["last"]
    *before, last = read(log, tail=5)
    assert last.text == "last"
    assert not any("first" in line.text for line in before)


def test_a_log_that_moves_while_it_is_looked_for_is_found(tmp_path: Path) -> None:
    here, there = tmp_path / "a-1" / "log", tmp_path / ".old" / "a-1" / "log"
    there.parent.mkdir(parents=True)
    there.write_text("hello")
    descriptor = open_log([absolute(here), absolute(there)])
    assert descriptor is not None
    with os.fdopen(descriptor) as log:
        assert log.read() == "hello"
    assert open_log([absolute(here)]) is None


def test_a_log_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/etc/hostname")
    with pytest.raises(EngineFailure, match="check whether it was replaced"):
        open_log([absolute(tmp_path / "log")])


pytestmark = pytest.mark.anyio
LINE = 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of 8 MiB, in numbered lines of 1 KiB."""
    made = tmp_path / "log"
    made.write_text("".join(f"{number:>{LINE - 1}}\n" for number in range(8 * MIB // LINE)))
    return made


async def read_lines(path: Path, offset: int = 0, tail: int | None = None) -> list[LogLine]:
    return [line async for line in read_log(os.open(path, os.O_RDONLY), offset, tail, False, lambda: True)]


def taken(path: Path) -> int:
    return path.stat().st_blocks * 512


async def test_a_log_within_its_limit_stays_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    assert not cut_log(absolute(path), 16)
    assert path.read_bytes() == before


async def test_of_a_log_beyond_its_limit_start_and_end_are_kept_and_a_note_says_so(path: Path) -> None:
    assert cut_log(absolute(path), 4)
    assert taken(path) <= 2 * MIB + 8192
    assert path.stat().st_size == 8 * MIB
    lines = await read_lines(path)
    texts = [line.text.strip() for line in lines]
    note = texts.index(next(text for text in texts if text.startswith("[commonage:")))
    assert "left out here: a log takes at most 4 MiB" in texts[note]
    assert texts[: note - 2] == [str(number) for number in range(note - 2)]
    assert texts[-1] == str(8 * MIB // LINE - 1)
    assert [line.text.strip() for line in await read_lines(path, tail=3)] == texts[-3:]
    assert await read_lines(path, offset=lines[-10].offset) == lines[-9:]
    assert not cut_log(absolute(path), 4)


async def test_growing_log_is_cut_again_with_one_note(path: Path) -> None:
    for _ in range(3):
        assert cut_log(absolute(path), 4)
        with path.open("ab") as file:
            file.write((b"y" * (LINE - 1) + b"\n") * 4 * 1024)
    assert cut_log(absolute(path), 4)
    assert taken(path) <= 2 * MIB + 8192
    notes = [line for line in await read_lines(path) if line.text.startswith("[commonage:")]
    assert [str(path.stat().st_size - 2 * MIB) in line.text for line in notes] == [True]


async def test_log_start_is_kept_without_hole_support(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "_PUNCH_HOLE_KEEP_SIZE", 1 << 30)  # which none knows
    assert cut_log(absolute(path), 4)
    assert path.stat().st_size == 8 * MIB
    assert taken(path) <= MIB
    assert (await read_lines(path))[0].text.strip() == "0"


@pytest.mark.parametrize("size", [0, 64 * MIB])
def test_space_that_a_workload_reserves_behind_the_end_of_its_log_is_given_back(path: Path, size: int) -> None:
    os.truncate(path, size)
    subprocess.run(["fallocate", "--keep-size", "--offset", "128M", "--length", "32M", str(path)], check=True)
    assert taken(path) >= 32 * MIB
    assert cut_log(absolute(path), 4)
    assert taken(path) <= 4 * MIB
    assert path.stat().st_size == size


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_replaced_log_is_left_alone(path: Path, tmp_path: Path, kind: str) -> None:
    before, trap = path.read_bytes(), tmp_path / "trap"
    if kind == "link":
        trap.symlink_to(path)
    else:
        os.mkfifo(trap)
    with pytest.raises(OSError):
        cut_log(absolute(trap), 2)
    assert path.read_bytes() == before
