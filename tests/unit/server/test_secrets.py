"""Secrets: made once, kept private, replaced by a password file, refused where others can read them."""

import stat
from pathlib import Path

import pytest

from commonage.server.secrets import SecretsError, load_secrets, read_password_file

LONG = "a-long-admin-password-of-40-characters--"


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_made_at_first_start_and_kept(tmp_path: Path) -> None:
    first = load_secrets(tmp_path)
    assert load_secrets(tmp_path) == first
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in first.folder.iterdir()} == {0o600}
    assert len(list(first.folder.iterdir())) == 8
    assert len(first.admin_password) >= 32 > len(first.users_password) >= 8


def test_two_installations_share_nothing(tmp_path: Path) -> None:
    one, other = load_secrets(tmp_path / "one"), load_secrets(tmp_path / "other")
    assert not {one.admin_password, one.spawner_token} & {other.admin_password, other.spawner_token}


def test_never_printed(tmp_path: Path) -> None:
    secrets = load_secrets(tmp_path)
    assert secrets.admin_password not in f"{secrets} {secrets!r}"


def test_password_file_wins_and_is_kept(tmp_path: Path) -> None:
    file = private(tmp_path / "passwords", f"# ours\n\nadmin={LONG}\nusers = open-sesame=1\n")
    load_secrets(tmp_path / "data")
    assert load_secrets(tmp_path / "data", file).users_password == "open-sesame=1"
    assert load_secrets(tmp_path / "data").admin_password == LONG


def test_password_file_may_set_one_of_them(tmp_path: Path) -> None:
    before = load_secrets(tmp_path / "data")
    after = load_secrets(tmp_path / "data", private(tmp_path / "passwords", "users=open-sesame"))
    assert (after.admin_password, after.users_password) == (before.admin_password, "open-sesame")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("open-sesame\n", "line 1: expected admin=PASSWORD or users=PASSWORD"),
        ("root=open-sesame\n", "line 1: expected"),
        ("\n# nothing\n", "sets no password"),
    ],
)
def test_password_file_that_says_nothing(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SecretsError, match=sentence):
        read_password_file(private(tmp_path / "passwords", text))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("users=short", "The users password .* has 5 characters"),
        ("admin=rather-short", "The admin password .* requires at least 32"),
        (f"admin={LONG}\nusers={LONG}", "are equal"),
    ],
)
def test_passwords_that_jupyterhub_would_refuse(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SecretsError, match=sentence):
        load_secrets(tmp_path / "data", private(tmp_path / "passwords", text))


@pytest.mark.parametrize(
    "text", ["users=short", "admin=rather-short", f"users={LONG}\nadmin=short", f"admin={LONG}\nusers={LONG}"]
)
def test_a_password_that_was_refused_is_not_kept(tmp_path: Path, text: str) -> None:
    before = load_secrets(tmp_path / "data")
    file = private(tmp_path / "passwords", text)
    with pytest.raises(SecretsError, match=r"are equal|/passwords\) has \d+ characters"):
        load_secrets(tmp_path / "data", file)
    assert load_secrets(tmp_path / "data") == before


def test_refused_if_others_can_read(tmp_path: Path) -> None:
    secrets = load_secrets(tmp_path)
    open_file = secrets.folder / "spawner_token"
    open_file.chmod(0o640)
    with pytest.raises(SecretsError, match=f"Other users can read .*Run: chmod 600 {open_file}"):
        load_secrets(tmp_path)
    open_file.chmod(0o600)
    secrets.folder.chmod(0o755)
    with pytest.raises(SecretsError, match=f"Run: chmod 700 {secrets.folder}"):
        load_secrets(tmp_path)


def test_password_file_that_others_can_read(tmp_path: Path) -> None:
    file = private(tmp_path / "passwords", f"admin={LONG}")
    file.chmod(0o644)
    with pytest.raises(SecretsError, match="Other users can read"):
        read_password_file(file)


def test_missing_password_file(tmp_path: Path) -> None:
    with pytest.raises(SecretsError, match=r"Cannot read .*nowhere"):
        load_secrets(tmp_path / "data", tmp_path / "nowhere")


def test_emptied_file(tmp_path: Path) -> None:
    (load_secrets(tmp_path).folder / "cookie_secret").write_text("\n")
    with pytest.raises(SecretsError, match=r"cookie_secret is empty. Remove it"):
        load_secrets(tmp_path)


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SecretsError, match="Cannot create the folder"):
        load_secrets(tmp_path / "file")
