"""Folders of users."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.engines.rundir.workspaces import clear_job_folders, folder_name, make_workspace, note_job_end
from commonage.files.safe_path import SafePath
from commonage.testing import factories as make

users = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


@given(users)
def test_no_archive_name_escapes_its_folder(user: str) -> None:
    name = folder_name(user)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name
    assert len(name.encode()) <= 100


@given(users, users)
def test_users_never_share_a_folder(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


def test_plain_names_stay_readable() -> None:
    assert folder_name("ada") == "ada"
    assert folder_name("ada.l-2_x") == "ada.l-2_x"
    assert folder_name("Ada Lovelace").startswith("ada-lovelace~")
    assert folder_name(folder_name("Ada")) != folder_name("Ada")


def test_a_workspace_is_its_owners_only(tmp_path: Path) -> None:
    folder = make_workspace(SafePath(tmp_path) / "workspaces", "ada").path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert make_workspace(SafePath(tmp_path) / "workspaces", "ada").path == folder


def _job(root: Path, user: str, name: str, at: float) -> Path:
    folder = root / user / "jobs" / name
    folder.mkdir(parents=True)
    (folder / "result.txt").write_text("42")
    os.utime(folder, (at, at))
    return folder


def test_old_job_folders_go_and_live_ones_and_others_stay(tmp_path: Path) -> None:
    old, live, new = (make.workload_id() for _ in range(3))
    gone = _job(tmp_path, "ada", old, 100.0)
    kept = [_job(tmp_path, "ada", live, 100.0), _job(tmp_path, "bob", new, 300.0), _job(tmp_path, "bob", "mine", 100.0)]
    (tmp_path / "ada" / "thesis.txt").write_text("not a job")
    assert clear_job_folders(SafePath(tmp_path), 200.0, {live}) == 1
    assert not gone.exists()
    assert all((folder / "result.txt").exists() for folder in kept)
    assert (tmp_path / "ada" / "thesis.txt").exists()


def test_links_of_users_lead_to_no_deletion_elsewhere(tmp_path: Path) -> None:
    outside = _job(tmp_path / "outside", "bob", make.workload_id(), 100.0)
    homes = tmp_path / "homes"
    (homes / "ada").mkdir(parents=True)
    (homes / "ada" / "jobs").symlink_to(outside.parent)
    (homes / "eve" / "jobs").mkdir(parents=True)
    (homes / "eve" / "jobs" / make.workload_id()).symlink_to(outside)
    assert clear_job_folders(SafePath(homes), 200.0, ()) == 0
    assert (outside / "result.txt").exists()


def test_the_age_of_a_job_folder_counts_from_its_last_end(tmp_path: Path) -> None:
    name = make.workload_id()
    folder = _job(tmp_path, "ada", name, 100.0)
    note_job_end(SafePath(tmp_path), "ada", name)
    note_job_end(SafePath(tmp_path), "ada", make.workload_id())
    assert clear_job_folders(SafePath(tmp_path), 200.0, ()) == 0
    assert folder.exists()


def test_a_user_who_closes_folders_does_not_stop_the_cleaning_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed, kept, gone, other = (make.workload_id() for _ in range(4))
    _job(tmp_path, "ada", closed, 100.0)
    _job(tmp_path, "bob", min(kept, gone), 100.0)
    _job(tmp_path, "bob", max(kept, gone), 100.0)
    _job(tmp_path, "eve", other, 100.0)
    list_names, remove = SafePath.list_names, SafePath.remove  # root may read and remove all, so the refusal is acted

    def listed(self: SafePath) -> list[str]:
        if "ada" in self.names:
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_names(self)

    def removed(self: SafePath) -> None:
        if self.name == min(kept, gone):
            raise PermissionError(errno.EACCES, "Permission denied")
        remove(self)

    monkeypatch.setattr(SafePath, "list_names", listed)
    monkeypatch.setattr(SafePath, "remove", removed)
    assert clear_job_folders(SafePath(tmp_path), 200.0, ()) == 2
    assert not (tmp_path / "bob" / "jobs" / max(kept, gone)).exists()
    assert not (tmp_path / "eve" / "jobs" / other).exists()
    assert [line.message for line in caplog.records] == [
        f"cannot clean up the job folder {tmp_path / path}: Permission denied"
        for path in ("ada/jobs", f"bob/jobs/{min(kept, gone)}")
    ]


def test_without_homes_nothing_is_cleared(tmp_path: Path) -> None:
    assert clear_job_folders(SafePath(tmp_path / "none"), 200.0, ()) == 0
