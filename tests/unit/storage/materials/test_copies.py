"""The copy of a material in a home: what a new version does with files that were edited, deleted or replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.storage.materials.versions_in_memory import Contents

from commonage.domain.materials import MaterialCopy
from commonage.domain.reasons import materials as reasons
from commonage.files.safe_path import SafePath
from commonage.ports.materials import EVERYTHING, Damaged
from commonage.storage import room
from commonage.storage.materials import copies
from commonage.storage.materials.content import id_of
from commonage.storage.materials.copies import HomeCopy


@dataclass
class Student:
    """A home, and the versions that were published for it."""

    root: Path
    contents: Contents = field(init=False)
    copy: HomeCopy = field(init=False)

    def __post_init__(self) -> None:
        self.contents = Contents(self.root / "contents")
        self.copy = HomeCopy(SafePath(self.root) / "home", "course")

    @property
    def folder(self) -> Path:
        return self.root / "home" / "materials" / "course"

    def publish(
        self, files: dict[str, bytes], reset: frozenset[str] = frozenset(), at: float | None = None
    ) -> MaterialCopy:
        version = self.contents.version(files)
        return self.copy.deliver(version, self.contents.reader(version), at or time.time(), reset)

    def files(self) -> dict[str, bytes]:
        return {
            str(one.relative_to(self.folder)): one.read_bytes()
            for one in self.folder.rglob("*")
            if one.is_file() and not one.is_symlink()
        }


@pytest.fixture
def student(tmp_path: Path) -> Student:
    return Student(tmp_path)


def test_delivers_all_files(student: Student) -> None:
    found = student.publish({"a.txt": b"one", "week/1/b.txt": b"two", "empty": b""})
    assert student.files() == {"a.txt": b"one", "week/1/b.txt": b"two", "empty": b""}
    assert found.error is None and found.edited == found.blocked == ()


def test_updates_unchanged_files(student: Student) -> None:
    student.publish({"a.txt": b"one"})
    student.publish({"a.txt": b"two", "b.txt": b"new"})
    assert student.files() == {"a.txt": b"two", "b.txt": b"new"}


def test_puts_new_version_beside_edited_file(student: Student) -> None:
    student.publish({"lab.ipynb": b"one"})
    (student.folder / "lab.ipynb").write_bytes(b"one, my answer")
    found = student.publish({"lab.ipynb": b"two"})
    assert student.files() == {"lab.ipynb": b"one, my answer", "lab.new-20231114-221320.ipynb": b"two"}
    assert found.edited == ("lab.ipynb",) and found.offered == ("lab.new-20231114-221320.ipynb",)


def test_replaces_offer_that_was_not_edited(student: Student) -> None:
    student.publish({"lab.ipynb": b"one"})
    (student.folder / "lab.ipynb").write_bytes(b"mine")
    student.publish({"lab.ipynb": b"two"})
    version = student.contents.version({"lab.ipynb": b"three"}, at=1_700_000_060.0)
    student.copy.deliver(version, student.contents.reader(version), time.time())
    assert student.files() == {"lab.ipynb": b"mine", "lab.new-20231114-221420.ipynb": b"three"}


def test_keeps_offer_that_was_edited(student: Student) -> None:
    student.publish({"a": b"one"})
    (student.folder / "a").write_bytes(b"mine")
    student.publish({"a": b"two"})
    (student.folder / "a.new-20231114-221320").write_bytes(b"my second try")
    student.publish({"a": b"three"})
    assert set(student.files().values()) == {b"mine", b"my second try", b"three"}


def test_keeps_own_file_where_the_material_gets_one(student: Student) -> None:
    student.publish({"a": b"one"})
    (student.folder / "notes.txt").write_bytes(b"my notes")
    student.publish({"a": b"one", "notes.txt": b"the teacher's"})
    assert student.files()["notes.txt"] == b"my notes"
    assert student.files()["notes.new-20231114-221320.txt"] == b"the teacher's"


def test_deleted_file_comes_back_only_on_reset(student: Student) -> None:
    student.publish({"a": b"one", "b": b"one"})
    (student.folder / "a").unlink()
    found = student.publish({"a": b"two", "b": b"two"})
    assert student.files() == {"b": b"two"} and found.deleted == ("a",)
    student.publish({"a": b"two", "b": b"two"}, frozenset({"a"}))
    assert student.files() == {"a": b"two", "b": b"two"}


def test_reset_keeps_edited_file_under_another_name(student: Student) -> None:
    student.publish({"a.py": b"one", "b.py": b"one"})
    (student.folder / "a.py").write_bytes(b"mine")
    (student.folder / "b.py").write_bytes(b"mine, too")
    found = student.publish({"a.py": b"one", "b.py": b"one"}, EVERYTHING, at=1_700_000_000.0)
    mine = {"a.mine-20231114-221320.py": b"mine", "b.mine-20231114-221320.py": b"mine, too"}
    assert student.files() == {"a.py": b"one", "b.py": b"one", **mine}
    assert found.edited == ()


def test_reset_of_one_file_leaves_others(student: Student) -> None:
    student.publish({"a": b"one", "b": b"one"})
    for name in ("a", "b"):
        (student.folder / name).write_bytes(b"mine")
    found = student.publish({"a": b"one", "b": b"one"}, frozenset({"a"}))
    assert student.files()["a"] == b"one" and student.files()["b"] == b"mine" and found.edited == ("b",)


def test_keeps_file_that_is_no_longer_in_the_repository(student: Student) -> None:
    student.publish({"a": b"one", "b": b"one"})
    found = student.publish({"a": b"two"})
    assert student.files() == {"a": b"two", "b": b"one"} and found.withdrawn == ("b",)


def test_returning_file_is_updated(student: Student) -> None:
    student.publish({"a": b"one", "b": b"one"})
    student.publish({"a": b"one"})
    student.publish({"a": b"one", "b": b"two"})
    assert student.files() == {"a": b"one", "b": b"two"}


def test_older_version_after_force_push_is_taken_over(student: Student) -> None:
    for content in (b"one", b"two", b"one"):
        student.publish({"a": content})
    assert student.files() == {"a": b"one"}


def test_edit_with_the_same_size_and_time_is_kept(student: Student) -> None:
    student.publish({"a": b"one"})
    before = (student.folder / "a").stat()
    (student.folder / "a").write_bytes(b"two")
    os.utime(student.folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    student.publish({"a": b"new"})
    assert student.files()["a"] == b"two"


def test_link_in_place_of_the_folder_is_not_followed(student: Student, tmp_path: Path) -> None:
    student.publish({"week/a": b"one"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"another user's")
    shutil.rmtree(student.folder / "week")
    (student.folder / "week").symlink_to(outside)
    found = student.publish({"week/a": b"two"})
    assert (outside / "a").read_bytes() == b"another user's" and found.blocked == ("week/a",)
    found = student.publish({"week/a": b"two"}, EVERYTHING)
    assert (student.folder / "week/a").read_bytes() == b"two" and found.blocked == ()
    assert [one.name for one in outside.iterdir()] == ["a"]


def test_link_in_place_of_a_file_is_not_followed(student: Student, tmp_path: Path) -> None:
    student.publish({"a": b"one"})
    (tmp_path / "secret").write_bytes(b"one")
    (student.folder / "a").unlink()
    (student.folder / "a").symlink_to(tmp_path / "secret")
    found = student.publish({"a": b"two"})
    assert found.blocked == ("a",) and (tmp_path / "secret").read_bytes() == b"one"


def test_link_in_place_of_own_folders_is_an_error(student: Student, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "home/.commonage").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="is a link"):
        student.publish({"a": b"one"})
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "state",
    [
        b"", b"[]", b"{", b"[" * 100_000, b'{"files": {"../../x": ["", 0, [], null, null, false]}}',
        b'{"tree": 1, "commit": "", "at": NaN, "files": {}}',
        b'{"tree": "", "commit": "", "at": 1e400, "files": {"a": ["", 0, [], null, ["../../b", "", 0], false]}}',
        b'{"tree": "", "commit": "", "at": 0, "files": {"a": ["", 1e400, [], null, null, false]}}',
    ],
)  # fmt: skip
def test_forged_state_counts_as_missing(student: Student, state: bytes) -> None:
    student.publish({"a": b"one"})
    (student.folder / "b").write_bytes(b"mine")
    (student.root / "home/.commonage/materials/course/state").write_bytes(state)
    found = student.publish({"a": b"one", "b": b"two"})
    assert student.files()["a"] == b"one" and student.files()["b"] == b"mine" and found.error is None


def test_state_too_large_for_the_version_counts_as_missing(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    student.publish({"a": b"one"})
    state = student.root / "home/.commonage/materials/course/state"
    parsed: list[int] = []
    loads = json.loads

    def noted(text: bytes) -> object:
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(copies.json, "loads", noted)
    forged = json.loads(state.read_bytes())
    parsed.clear()
    forged["files"]["b"] = ["", 0, [["", 0]] * 1_000_000, None, None, False]
    state.write_text(json.dumps(forged))
    found = student.publish({"a": b"one", "b": b"two"})
    assert parsed == [], "a user's own file is not parsed at any size"
    assert student.files() == {"a": b"one", "b": b"two"} and found.error is None
    monkeypatch.setattr(copies, "_MAX_STATE_BYTES", 0)
    student.publish({"a": b"three", "b": b"two"})
    assert student.files() == {"a": b"three", "b": b"two"}, "the state of a version of many files is read"


def test_only_what_the_version_has_is_read_from_a_home(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    student.publish({"a": b"one", "b": b"two"})
    huge, state = 2**42, student.root / "home/.commonage/materials/course/state"
    os.truncate(student.folder / "a", huge)
    own, blob = state.parent, "0" * 40
    (own / "old" / f"{blob}.{blob}.{huge}.0").touch()
    os.truncate(own / "old" / f"{blob}.{blob}.{huge}.0", huge)
    (student.folder / "offer").touch()
    os.truncate(student.folder / "offer", huge)
    forged = json.loads(state.read_bytes())
    forged["files"]["a"] = [blob, huge, [[blob, huge]], None, None, False]
    forged["files"]["b"] = [blob, 3, [], None, ["offer", blob, huge], False]
    state.write_text(json.dumps(forged))
    sizes: list[int] = []

    def noted(place: SafePath, size: int, like: str) -> str:
        sizes.append(size)
        return id_of(place, size, like) if size < 10 else ""

    monkeypatch.setattr(copies, "id_of", noted)
    version = student.contents.version({"a": b"one", "b": b"two"})
    found = student.copy.look(version)
    assert found is not None and found.edited == ("a", "b")
    student.publish({"a": b"one", "b": b"two", "c": b"three"})
    assert sum(sizes) < 100
    assert sorted(one.stat().st_size for one in student.folder.iterdir())[-3:] == [huge] * 3


def test_damaged_version_is_not_delivered(student: Student) -> None:
    version = student.contents.version({"a": b"one"})
    reader = student.contents.reader(student.contents.version({"a": b"two"}))
    with pytest.raises(Damaged):
        student.copy.deliver(version, reader, time.time())
    assert student.files() == {}


def test_write_to_a_replaced_file_is_kept(student: Student) -> None:
    student.publish({"a.txt": b"one"})
    with (student.folder / "a.txt").open("ab", buffering=0) as still_open:
        student.publish({"a.txt": b"two"})
        still_open.write(b", late edit")
    student.publish({"a.txt": b"two", "b": b"more"}, at=1_700_000_000.0)
    assert student.files()["a.mine-20231114-221320.txt"] == b"one, late edit"
    assert student.files()["a.txt"] == b"two"


def test_replaced_files_are_removed_later(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    student.publish({"a": b"one"})
    student.publish({"a": b"two"})
    old = student.root / "home/.commonage/materials/course/old"
    assert len(list(old.iterdir())) == 1
    monkeypatch.setattr(copies, "_LATE_S", -1.0)
    student.publish({"a": b"two"})
    assert list(old.iterdir()) == []


def test_full_disk_leaves_files_as_they_were(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    student.publish({"a": b"one"})
    version = student.contents.version({"a": b"two" * 1_000_000})
    found = student.copy.deliver(version, student.contents.reader(version), time.time(), room_mib=1)
    assert found.error == reasons.CopyNeedsSpace(material="course", needed_mib=3, free_mib=1)
    assert student.files() == {"a": b"one"}

    def link(self: SafePath, to: SafePath) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(SafePath, "link", link)
        found = student.publish({"a": b"two"})
    assert isinstance(found.error, reasons.CopyNeedsSpace)
    student.publish({"a": b"two"})
    assert student.files() == {"a": b"two"}


def test_rest_of_a_project_quota_can_be_used_to_its_end(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    student.publish({"a": b"one"})
    home = (student.root / "home").stat().st_ino

    def free(descriptor: int) -> int:
        return (100 if os.fstat(descriptor).st_ino == home else 100_000) * 1024 * 1024

    monkeypatch.setattr(room, "_free", free)
    assert student.publish({"a": b"two"}).error is None
    monkeypatch.setattr(room, "_free", lambda descriptor: 100 * 1024 * 1024)  # of the disk
    assert isinstance(student.publish({"a": b"three"}).error, reasons.CopyNeedsSpace)


class Killed(BaseException):
    """The server is killed."""


@contextmanager
def calls_at(number: int, call: Callable[[], None]) -> Iterator[None]:
    """Calls before the `number`th change of a name, from 0, and before all later ones if that raises."""
    done = 0
    kept = {name: getattr(SafePath, name) for name in ("link", "move", "remove")}

    def made(name: str) -> object:
        def change(self: SafePath, *arguments: SafePath) -> None:
            nonlocal done
            if done >= number:
                call()
            done += 1
            kept[name](self, *arguments)

        return change

    try:
        for name in kept:
            setattr(SafePath, name, made(name))
        yield
    finally:
        for name, before in kept.items():
            setattr(SafePath, name, before)


def kill() -> None:
    raise Killed


def killed_at(number: int) -> AbstractContextManager[None]:
    return calls_at(number, kill)


@pytest.mark.parametrize("number", range(14))
def test_crash_loses_nothing_and_the_next_round_completes(student: Student, number: int) -> None:
    student.publish({"a": b"one", "b": b"one", "c": b"one"})
    (student.folder / "b").write_bytes(b"mine")
    try:
        with killed_at(number):
            student.publish({"a": b"two", "b": b"two", "c": b"two", "d": b"two"})
    except Killed:
        pass
    found = student.publish({"a": b"three", "b": b"three", "c": b"three", "d": b"three"})
    files = student.files()
    assert {name: files[name] for name in "abcd"} == {"a": b"three", "b": b"mine", "c": b"three", "d": b"three"}
    assert found.deleted == () and found.error is None


PATHS = ("a", "b.txt", "week/c", "week/d", "e/f/g")
paths, contents = st.sampled_from(PATHS), st.binary(max_size=3)


class Copies(RuleBasedStateMachine):
    """After any sequence of pushes, edits, deletions, resets and interruptions, each edit is in some visible file."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.student = Student(Path(self._temporary.name))
        self.edits: dict[bytes, str] = {}
        self._number = 0

    def teardown(self) -> None:
        self._temporary.cleanup()

    @initialize(files=st.dictionaries(paths, contents))
    def start(self, files: dict[str, bytes]) -> None:
        self.pushed = files
        self.student.publish(files)

    @rule(files=st.dictionaries(paths, contents), reset=st.sampled_from([frozenset(), EVERYTHING, frozenset({"a"})]))
    def push(self, files: dict[str, bytes], reset: frozenset[str]) -> None:
        self.pushed = files
        found = self.student.publish(files, reset)
        assert found.error is None
        if reset == EVERYTHING:
            present = self.student.files()
            assert all(present.get(path) == content for path, content in files.items())

    @rule(files=st.dictionaries(paths, contents), number=st.integers(0, 20))
    def crash(self, files: dict[str, bytes], number: int) -> None:
        self.pushed = files
        try:
            with killed_at(number):
                self.student.publish(files)
        except Killed:
            pass

    @rule(path=paths, is_atomic=st.booleans())
    def edit(self, path: str, is_atomic: bool) -> None:
        place = self.student.folder / path
        self._number += 1
        content = f"edit {self._number}".encode()
        with suppress(OSError):
            self.edits.pop(place.read_bytes(), None)  # the user overwrites it
        place.parent.mkdir(parents=True, exist_ok=True)
        if is_atomic:
            new = place.with_name("saving")
            new.write_bytes(content)
            new.replace(place)
        else:
            place.write_bytes(content)
        self.edits[content] = path

    @rule(files=st.dictionaries(paths, contents), path=paths, number=st.integers(0, 20), is_atomic=st.booleans())
    def edit_meanwhile(self, files: dict[str, bytes], path: str, number: int, is_atomic: bool) -> None:
        is_done = False

        def edit() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self.edit(path, is_atomic)

        self.pushed = files
        with calls_at(number, edit):
            self.student.publish(files)

    @rule(path=paths)
    def delete(self, path: str) -> None:
        place = self.student.folder / path
        if place.is_file():
            self.edits.pop(place.read_bytes(), None)
            place.unlink()

    @rule()
    def lose_state(self) -> None:
        (self.student.root / "home/.commonage/materials/course/state").unlink(missing_ok=True)

    @invariant()
    def each_edit_is_there(self) -> None:
        home = self.student.root / "home"
        there = {one.read_bytes() for one in home.rglob("*") if one.is_file()}
        assert set(self.edits) <= there

    @rule()
    def settle(self) -> None:
        """A round that is not interrupted shows all edits, also those that a crash had left in hidden folders."""
        self.student.publish(self.pushed)
        assert set(self.edits) <= set(self.student.files().values())


TestCopies = Copies.TestCase
TestCopies.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
