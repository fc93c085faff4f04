"""Folders of users."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from commonage.engines.rundir.workspaces import folder_name, make_workspace
from commonage.files.safe_path import SafePath

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
