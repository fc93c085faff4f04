"""Fetches of `commonage gitops` and materials that are ended in the middle, their memory, and their progress."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fakes.waiting import wait_until
from tests.integration.git_server import GitServer, PushedRepository, Stalling, stalling

from commonage.files import git as git_module
from commonage.files.git import Branch, GitFailed

_MIB = 1024 * 1024
_FETCH = """
import sys
from pathlib import Path
from commonage.files.git import Branch
Branch(sys.argv[1], "main", Path(sys.argv[2])).fetch(lambda: None)
"""


class Ended(Exception):
    """Raised by a guard."""


@pytest.fixture
def course(git: GitServer) -> PushedRepository:
    made = git.repository("course")
    made.push({"small": "one", "large": os.urandom(8 * _MIB)})
    return made


@pytest.fixture
def slow(git: GitServer) -> Iterator[Stalling]:
    with stalling(git, 2 * _MIB) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def gits(folder: Path) -> list[int]:
    """The processes that work on the repository, also those of a process that was killed."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(one) == str(folder / "writer") for one in (place / "fd").iterdir()):
                found.append(int(place.name))
        except OSError:
            continue
    return [one for one in found if one != os.getpid()]


def rest(folder: Path) -> list[str]:
    """Files that an ended fetch leaves."""
    return [one.name for one in folder.rglob("*") if re.search(r"\.lock$|^tmp_|\.keep$|^shallow_", one.name)]


def packs_bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in (folder / "objects/pack").iterdir())


def end_in_the_middle(slow: Stalling, course: PushedRepository, folder: Path) -> None:
    def guard() -> None:
        if slow.stalled.is_set() and rest(folder):
            raise Ended

    with pytest.raises(Ended):
        Branch(slow.url(course), "main", folder).fetch(guard)


def test_fetch_succeeds_after_one_that_was_ended(course: PushedRepository, slow: Stalling, folder: Path) -> None:
    end_in_the_middle(slow, course, folder)
    assert rest(folder)
    branch = Branch(course.url, "main", folder)
    commit = branch.fetch()
    assert commit == course.git("rev-parse", "HEAD")
    assert branch.files(commit, "", "small") == {"small": b"one"}
    assert not rest(folder) and packs_bytes(folder) < 9 * _MIB


@pytest.mark.parametrize(
    "left",
    [
        *("shallow.lock", "refs/heads/main.lock", "packed-refs.lock", "config.lock", "gc.pid", "shallow_x1"),
        *("objects/pack/tmp_pack_x1", "objects/pack/pack-1.keep", "objects/pack/pack-1.pack", "objects/tmp_objdir/a"),
    ],
)
def test_leftover_of_an_ended_git_is_removed(course: PushedRepository, folder: Path, left: str) -> None:
    branch = Branch(course.url, "main", folder)
    branch.fetch()
    (folder / left).parent.mkdir(exist_ok=True)
    (folder / left).touch()
    commit = course.push({"small": "two"})
    assert branch.fetch() == commit
    assert not (folder / left).exists()
    branch.collect()
    assert branch.files(commit, "", "small") == {"small": b"two"}


def test_fetch_succeeds_after_the_program_git_was_killed(
    course: PushedRepository, slow: Stalling, folder: Path
) -> None:
    with ThreadPoolExecutor() as threads:
        fetching = threads.submit(Branch(slow.url(course), "main", folder).fetch, lambda: None)
        assert slow.stalled.wait(60)
        for one in wait_until(lambda: rest(folder) and gits(folder), "a fetch"):
            os.kill(one, signal.SIGKILL)
        with pytest.raises(GitFailed):
            fetching.result(60)
    assert Branch(course.url, "main", folder).fetch() == course.git("rev-parse", "HEAD")


def test_git_of_a_killed_server_is_waited_for(course: PushedRepository, slow: Stalling, folder: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", _FETCH, slow.url(course), str(folder)])
    assert slow.stalled.wait(60)
    wait_until(lambda: rest(folder), "a fetch")
    server.kill()
    server.wait()
    assert gits(folder)

    def guard() -> None:
        if not slow.released.is_set():
            assert rest(folder), "nothing of a git that runs is removed"
            slow.release()

    commit = Branch(course.url, "main", folder).fetch(guard)
    assert commit == course.git("rev-parse", "HEAD") and slow.released.is_set() and not rest(folder)


def test_repository_that_is_in_use_is_refused(
    course: PushedRepository, slow: Stalling, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "_LOCKED_FOR_S", 0.0)
    with ThreadPoolExecutor() as threads:
        fetching = threads.submit(Branch(slow.url(course), "main", folder).fetch)
        assert slow.stalled.wait(60)
        with pytest.raises(GitFailed, match="still works on an earlier fetch"):
            Branch(course.url, "main", folder).fetch()
        slow.release()
        assert fetching.result(60) == course.git("rev-parse", "HEAD")


def test_repository_is_made_again_if_that_was_ended(course: PushedRepository, folder: Path) -> None:
    folder.mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config.lock").touch()
    branch = Branch(course.url, "main", folder)
    assert branch.newest() == branch.fetch() == course.git("rev-parse", "HEAD")


def test_progress_is_told_and_is_no_error(course: PushedRepository, folder: Path) -> None:
    told: list[tuple[str, int]] = []
    Branch(course.url, "main", folder).fetch(progress=lambda step, percent: told.append((step, percent)))
    assert ("Receiving objects", 100) in told
    with pytest.raises(GitFailed) as failed:
        Branch(course.url, "other", folder).fetch()
    assert str(failed.value) == "fatal: couldn't find remote ref refs/heads/other"


def test_large_files_need_little_memory(git: GitServer, folder: Path) -> None:
    course = git.repository("large")
    for name, value in {"core.compression": "0", "core.bigFileThreshold": "1m"}.items():  # quick, and no differences
        course.git("config", name, value)
        course.git("--git-dir", str(course.bare), "config", name, value)
    course.push({f"{number}.bin": os.urandom(128 * _MIB) for number in range(2)})
    code = f"""{_FETCH}
import resource
Branch(sys.argv[1], "main", Path(sys.argv[2])).collect()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
    argv = [sys.executable, "-c", code, course.url, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100, "MiB"
