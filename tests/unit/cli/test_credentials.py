"""Which server and which token: the order in which they are looked for, and a file that only its owner reads."""

import json
import stat
from pathlib import Path

import pytest

from commonage.cli.credentials import DEFAULT_URL, Server, credentials_file, find_server, keep, load, running_at, tidy
from commonage.cli.failures import Failure


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COMMONAGE_URL", raising=False)
    monkeypatch.delenv("COMMONAGE_TOKEN", raising=False)
    return tmp_path


def test_flag_before_variable_before_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(None, None, None) == Server(DEFAULT_URL, None)
    keep("http://kept:1", "kept-token")
    assert find_server(None, None, None) == Server("http://kept:1", "kept-token")
    monkeypatch.setenv("COMMONAGE_URL", "http://var:2/")
    assert find_server(None, None, None) == Server("http://var:2", None)
    monkeypatch.setenv("COMMONAGE_TOKEN", "var-token")
    assert find_server(None, None, None) == Server("http://var:2", "var-token")
    assert find_server("flag:3", "flag-token", None) == Server("http://flag:3", "flag-token")


def test_tokens_are_kept_by_address_for_their_owner_alone() -> None:
    keep("http://a", "1")
    path = keep("http://b", "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load().tokens == {"http://a": "1", "http://b": "2"}
    assert load().default_url == "http://b"
    assert find_server("http://a", None, None).token == "1"


def test_a_file_that_others_read_or_that_is_torn() -> None:
    path = keep("http://a", "1")
    path.chmod(0o644)
    with pytest.raises(Failure, match="chmod 600"):
        load()
    path.chmod(0o600)
    path.write_text("{torn")
    with pytest.raises(Failure, match="is damaged"):
        load()
    assert credentials_file() == path


@pytest.mark.parametrize(
    "typed",
    ["http://h:8000", "http://h:8000/", "h:8000", "http://h:8000/hub", "http://h:8000/services/commonage/nodes"],
)
def test_addresses_as_people_paste_them(typed: str) -> None:
    assert tidy(typed) == "http://h:8000"


def test_a_data_folder_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        running_at(tmp_path)
    (tmp_path / "commonage.lock").write_text("")
    with pytest.raises(Failure, match=r"no server runs on .*: commonage up --data-dir"):
        running_at(tmp_path)
    (tmp_path / "commonage.lock").write_text(json.dumps({"hub_url": "http://127.0.0.1:1", "url": "http://here"}))
    assert find_server(None, "given", tmp_path) == Server("http://here", "given")
    with pytest.raises(Failure, match="operator_token cannot be read"):
        find_server(None, None, tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "operator_token").write_text("secret\n")
    assert find_server(None, None, tmp_path) == Server("http://here", "secret")
