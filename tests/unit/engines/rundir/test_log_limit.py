"""The disk space of a log: start and end are kept, offsets stay, and nothing but a log is ever touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from commonage.domain.statuses import LogLine
from commonage.engines.rundir import logs as log_limit
from commonage.engines.rundir.logs import cut_log, read_log
from commonage.files.safe_path import absolute

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
LINE = 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of 8 MiB, in numbered lines of 1 KiB."""
    made = tmp_path / "log"
    made.write_text("".join(f"{number:>{LINE - 1}}\n" for number in range(8 * MIB // LINE)))
    return made


async def read(path: Path, offset: int = 0, tail: int | None = None) -> list[LogLine]:
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
    lines = await read(path)
    texts = [line.text.strip() for line in lines]
    note = texts.index(next(text for text in texts if text.startswith("[commonage:")))
    assert "left out here: a log takes at most 4 MiB" in texts[note]
    assert texts[: note - 2] == [str(number) for number in range(note - 2)]
    assert texts[-1] == str(8 * MIB // LINE - 1)
    assert [line.text.strip() for line in await read(path, tail=3)] == texts[-3:]
    assert await read(path, offset=lines[-10].offset) == lines[-9:]
    assert not cut_log(absolute(path), 4)


async def test_growing_log_is_cut_again_with_one_note(path: Path) -> None:
    for _ in range(3):
        assert cut_log(absolute(path), 4)
        with path.open("ab") as file:
            file.write((b"y" * (LINE - 1) + b"\n") * 4 * 1024)
    assert cut_log(absolute(path), 4)
    assert taken(path) <= 2 * MIB + 8192
    notes = [line for line in await read(path) if line.text.startswith("[commonage:")]
    assert [str(path.stat().st_size - 2 * MIB) in line.text for line in notes] == [True]


async def test_log_start_is_kept_without_hole_support(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "_PUNCH_HOLE_KEEP_SIZE", 1 << 30)  # which none knows
    assert cut_log(absolute(path), 4)
    assert path.stat().st_size == 8 * MIB
    assert taken(path) <= MIB
    assert (await read(path))[0].text.strip() == "0"


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
