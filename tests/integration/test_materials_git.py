"""Versions of materials from real repositories: damaged files, limits while git fetches, and tokens for HTTPS."""

from __future__ import annotations

import asyncio
import base64
import errno
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.fakes.waiting import until
from tests.integration.git_server import GitServer, PushedRepository, stalling

from commonage.domain.errors import Unavailable
from commonage.domain.materials import Material
from commonage.domain.reasons import materials as reasons
from commonage.files import git as git_module
from commonage.files.git import Branch, GitAccess, GitFailed
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place
from commonage.storage.materials import versions
from commonage.storage.materials.credentials import Credentials
from commonage.storage.materials.home_copies import FolderCopies
from commonage.storage.materials.materials import MaterialFolders
from commonage.storage.materials.versions import Versions

pytestmark = pytest.mark.anyio
NOW = 1_700_000_000.0
_MIB = 1024 * 1024


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[MaterialFolders]:
    made = MaterialFolders(
        Versions(SafePath(tmp_path / "materials"), tmp_path / "repositories"),
        Credentials(tmp_path / "credentials"),
        FolderCopies(SafePath(tmp_path / "homes")),
    )
    yield made
    made.close()


async def test_damaged_version_is_written_again(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"a.py": "print(1)", "b.py": "print(2)"})
    version = await folders.sync("course", Material(course.url), NOW)
    place = tmp_path / f"materials/course/.versions/{version.tree}/a.py"
    place.unlink()
    place.write_text("forged")
    copy = await folders.deliver("course", Place(home="ann"), NOW)
    assert copy.error is None
    assert (tmp_path / "homes/ann/materials/course/a.py").read_text() == "print(1)" == place.read_text()


async def test_link_in_a_version_is_not_followed(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"a.py": "print(1)"})
    version = await folders.sync("course", Material(course.url), NOW)
    (tmp_path / "secret").write_text("print(1)")
    place = tmp_path / f"materials/course/.versions/{version.tree}/a.py"
    place.unlink()
    place.symlink_to(tmp_path / "secret")
    assert (await folders.deliver("course", Place(home="ann"), NOW)).error is None
    assert not place.is_symlink()


async def test_links_of_the_repository_are_left_out(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path
) -> None:
    (course.work / "link").symlink_to("/etc/passwd")
    course.push({"a": "one", "run.sh": "#!/bin/sh"})
    (course.work / "run.sh").chmod(0o755)
    course.push({})
    version = await folders.sync("course", Material(course.url), NOW)
    await folders.deliver("course", Place(home="ann"), NOW)
    home = tmp_path / "homes/ann/materials/course"
    assert sorted(one.name for one in home.iterdir()) == ["a", "run.sh"] and version.skipped == 1
    assert os.access(home / "run.sh", os.X_OK) and not (home / "a").stat().st_mode & 0o111


async def test_version_survives_a_restart(
    folders: MaterialFolders, course: PushedRepository, git: GitServer, tmp_path: Path
) -> None:
    course.push({"a": "one"})
    version = await folders.sync("course", Material(course.url), NOW)
    git.stop()
    later = MaterialFolders(
        Versions(folders.versions.root, folders.versions.repositories), folders.credentials, folders.copies
    )
    assert await later.version("course") == version
    assert (await later.deliver("course", Place(home="ann"), NOW)).error is None
    later.close()


async def test_fetch_ends_when_it_exceeds_the_limit(
    folders: MaterialFolders, course: PushedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.push({"a": "one"})
    first = await folders.sync("course", Material(course.url), NOW)
    course.push({"large": os.urandom(8 * 1024 * 1024)})
    with pytest.raises(Unavailable) as refused:
        await folders.sync("course", Material(course.url, size_mib=1), NOW)
    assert refused.value.reason == reasons.MaterialTooLarge(material="course", limit_mib=1)
    assert await folders.version("course") == first
    monkeypatch.setattr(versions, "_RESERVE_MIB", 10**9)
    with pytest.raises(Unavailable) as refused:
        await folders.sync("course", Material(course.url), NOW)
    assert isinstance(refused.value.reason, reasons.MaterialDiskFull)
    assert await folders.version("course") == first


async def test_tree_that_a_small_repository_multiplies_is_refused(
    folders: MaterialFolders, course: PushedRepository
) -> None:
    course.push({"a": "one"})
    first = await folders.sync("course", Material(course.url), NOW)
    blob = course.git("rev-parse", "HEAD:a")
    entry = f"100644 blob {blob}"
    for _ in range(10):  # 10^10 paths in ten trees
        tree = course.make_tree(f"{entry}\t{number}" for number in range(10))
        entry = f"040000 tree {tree}"
    commit = course.git("commit-tree", "-m", "bomb", tree)
    course.git("push", "--quiet", "--force", "origin", f"{commit}:main")
    with pytest.raises(Unavailable) as refused:
        await folders.sync("course", Material(course.url), NOW)
    assert refused.value.reason == reasons.MaterialTooManyFiles(material="course", files=50_001, limit=50_000)
    assert await folders.version("course") == first


def test_answer_of_git_is_bounded(course: PushedRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course.push({"large.yaml": b"x" * 5000})
    branch = Branch(course.url, "main", tmp_path / "repository")
    commit = branch.fetch()
    assert branch.files(commit, "", ".yaml") == {"large.yaml": b"x" * 5000}
    monkeypatch.setattr(git_module, "_MAX_OUTPUT", 4000)
    with pytest.raises(GitFailed, match="more than 4000 bytes"):
        branch.files(commit, "", ".yaml")


async def test_old_versions_can_be_removed(folders: MaterialFolders, course: PushedRepository, tmp_path: Path) -> None:
    course.push({"a": "one"})
    first = await folders.sync("course", Material(course.url), NOW)
    course.push({"a": "two"})
    second = await folders.sync("course", Material(course.url), NOW)
    assert list(await folders.old_versions("course")) == [first.tree]
    await folders.remove_version("course", first.tree)
    kept = tmp_path / "materials/course"
    assert [one.name for one in (kept / ".versions").iterdir()] == [second.tree]
    assert (kept / "current/a").read_text() == "two"


def inodes(folder: Path) -> dict[str, int]:
    return {str(one.relative_to(folder)): one.stat().st_ino for one in folder.rglob("*") if one.is_file()}


async def test_unchanged_files_of_a_new_version_are_links(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"same": "one", "week-1/moved": "two", "changed": "three", "run.sh": "four"})
    first = await folders.sync("course", Material(course.url), NOW)
    (course.work / "run.sh").chmod(0o755)
    course.push({"week-1/moved": None, "week-2/moved": "two", "changed": "new"})
    second = await folders.sync("course", Material(course.url), NOW)
    kept = tmp_path / "materials/course/.versions"
    before, after = inodes(kept / first.tree), inodes(kept / second.tree)
    assert after.keys() == {"same", "week-2/moved", "changed", "run.sh"}
    assert (after["same"], after["week-2/moved"]) == (before["same"], before["week-1/moved"])
    assert not {after["changed"], after["run.sh"]} & set(before.values())
    assert (kept / first.tree / "changed").read_text() == "three" and os.access(kept / second.tree / "run.sh", os.X_OK)
    await folders.remove_version("course", first.tree)
    assert (kept / second.tree / "same").read_text() == "one"


@pytest.mark.parametrize("damaged", ["longer", "two"])
async def test_damaged_file_that_a_new_version_has_too_is_written_again(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path, damaged: str
) -> None:
    """Of another size it is no link; of the same size it is found when it is delivered, as in the first version."""
    course.push({"a": "one", "b": "b"})
    first = await folders.sync("course", Material(course.url), NOW)
    place = tmp_path / f"materials/course/.versions/{first.tree}/a"
    place.chmod(0o644)
    place.write_text(damaged)
    place.chmod(0o444)
    course.push({"b": "c"})
    await folders.sync("course", Material(course.url), NOW)
    assert (await folders.deliver("course", Place(home="ann"), NOW)).error is None
    assert (tmp_path / "homes/ann/materials/course/a").read_text() == "one"
    assert (tmp_path / "materials/course/current/a").read_text() == "one"


async def test_unlinkable_files_are_written(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.push({"a": "one", "b": "b"})
    await folders.sync("course", Material(course.url), NOW)
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EMLINK, "too many links")))
    course.push({"b": "c"})
    await folders.sync("course", Material(course.url), NOW)
    assert (tmp_path / "materials/course/current/a").read_text() == "one"


async def test_room_is_needed_for_new_files_alone(
    folders: MaterialFolders, course: PushedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.push({"large": os.urandom(4 * _MIB)})
    await folders.sync("course", Material(course.url), NOW)
    monkeypatch.setattr(versions, "_RESERVE_MIB", 0)
    monkeypatch.setattr(versions, "_free_mib", lambda folder: 1)
    course.push({"small": "one"})
    await folders.sync("course", Material(course.url), NOW)
    course.push({"other": os.urandom(4 * _MIB)})
    with pytest.raises(Unavailable) as refused:
        await folders.sync("course", Material(course.url), NOW)
    assert refused.value.reason == reasons.MaterialDiskFull(material="course", needed_mib=4, free_mib=1)


async def test_old_commits_leave_room_for_a_new_one(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version is within the limit, and the repository stays within its own, also while git fetches."""
    monkeypatch.setattr(versions, "_SLACK_BYTES", 2 * _MIB)
    material = Material(course.url, size_mib=8)
    for _ in range(5):
        course.push({"large": os.urandom(7 * _MIB)})
        await folders.sync("course", material, NOW)
        await folders.sync("course", material, NOW)  # nothing is new
        packs = (tmp_path / "repositories/course/repository/objects").rglob("*.pack")
        assert sum(one.stat().st_size for one in packs) < 9 * _MIB


async def test_ended_sync_leaves_nothing_for_ever(
    folders: MaterialFolders, course: PushedRepository, tmp_path: Path
) -> None:
    course.push({"a": "one"})
    version = await folders.sync("course", Material(course.url), NOW)
    kept = tmp_path / "materials/course/.versions"
    for name in (f".{'a' * 40}.new", f".{'b' * 40}.gone"):
        (kept / name).mkdir()
        (kept / name / "file").touch()
    for name in await folders.old_versions("course"):
        await folders.remove_version("course", name)
    assert [one.name for one in kept.iterdir()] == [version.tree]


async def test_sync_shows_its_progress(folders: MaterialFolders, course: PushedRepository, git: GitServer) -> None:
    class Told(dict[str, reasons.MaterialSyncing]):
        """Keeps all steps."""

        def __setitem__(self, name: str, told: reasons.MaterialSyncing) -> None:
            steps.append((told.step, told.percent))
            super().__setitem__(name, told)

    steps: list[tuple[str, int]] = []
    folders.versions.syncing = Told()
    course.push({"large": os.urandom(8 * _MIB), "small": "one"})
    with stalling(git, _MIB) as slow:
        syncing = asyncio.create_task(folders.sync("course", Material(slow.url(course)), NOW))
        shown = await until(lambda: folders.syncing("course"), "progress")
        assert shown == reasons.MaterialSyncing(material="course", step="receiving objects", percent=0)
        slow.release()
        version = await syncing
    assert folders.syncing("course") is None
    done = dict.fromkeys(step for step, percent in steps if percent == 100)
    assert list(done) == ["receiving objects", "writing files"]
    assert await folders.version("course") == version


def test_local_repositories_are_refused(tmp_path: Path) -> None:
    variables = {"GIT_ALLOW_PROTOCOL": "git:http:https:ssh"}
    with pytest.raises(GitFailed, match="not allowed"):
        Branch(f"file://{tmp_path}", "main", tmp_path / "repository", variables).newest()


class Forge(http.server.ThreadingHTTPServer):
    """Redirects `/moved` to `elsewhere`, and notes the header with the token of each request."""

    elsewhere = ""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        forge = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                forge.seen.append(self.headers.get("Authorization"))
                self.send_response(302 if self.path.startswith("/moved") else 404)
                if self.path.startswith("/moved"):
                    self.send_header("Location", forge.elsewhere + self.path.removeprefix("/moved"))
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def forges() -> Iterator[tuple[Forge, Forge]]:
    made = (Forge(), Forge())
    threads = [threading.Thread(target=one.serve_forever) for one in made]
    for thread in threads:
        thread.start()
    yield made
    for one, thread in zip(made, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()


def test_token_goes_to_its_server_alone(forges: tuple[Forge, Forge], tmp_path: Path) -> None:
    forge, other = forges
    forge.elsewhere = other.url
    access = GitAccess(user="ann", token="secret-token")
    for url in (f"{forge.url}/lab/course", f"{forge.url}/moved/lab/course"):
        with pytest.raises(GitFailed) as failed:
            Branch(url, "main", tmp_path / "repository", access.variables(url)).newest()
        assert "secret-token" not in str(failed.value)
    assert set(forge.seen) == {"Basic " + base64.b64encode(b"ann:secret-token").decode()}
    assert other.seen == []
