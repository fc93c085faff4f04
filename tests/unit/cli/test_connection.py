"""The server and the token: precedence of the sources, and a file that only its owner can read."""

import json
import stat
import time
from pathlib import Path

import pytest

from commonage.cli.connection import (
    DEFAULT_URL,
    Server,
    credentials_file,
    find_server,
    load,
    normalize_url,
    running_at,
    save,
)
from commonage.cli.errors import Failure


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COMMONAGE_URL", raising=False)
    monkeypatch.delenv("COMMONAGE_TOKEN", raising=False)
    return tmp_path


def test_option_overrides_variable_overrides_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(None, None, None) == Server(DEFAULT_URL, None)
    save("http://kept:1", "kept-token")
    assert find_server(None, None, None) == Server("http://kept:1", "kept-token")
    monkeypatch.setenv("COMMONAGE_URL", "http://var:2/")
    assert find_server(None, None, None) == Server("http://var:2", None)
    monkeypatch.setenv("COMMONAGE_TOKEN", "var-token")
    assert find_server(None, None, None) == Server("http://var:2", "var-token")
    assert find_server("flag:3", "flag-token", None) == Server("http://flag:3", "flag-token")


def test_tokens_are_saved_by_address_for_owner_only() -> None:
    save("http://a", "1")
    path = save("http://b", "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load().tokens == {"http://a": "1", "http://b": "2"}
    assert load().default_url == "http://b"
    assert find_server("http://a", None, None).token == "1"


def test_an_expiring_token_is_announced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    day_s = 24 * 3600
    save("http://soon", "1", time.time() + 2 * day_s)
    save("http://late", "2", time.time() - 2 * day_s)
    save("http://never", "3")
    save("http://later", "4", time.time() + 20 * day_s)
    for url in ("http://never", "http://later"):
        find_server(url, None, None)
    find_server("http://soon", "another-token", None)
    assert capsys.readouterr().err == ""
    find_server("http://soon", None, None)
    assert "Your token for http://soon expires on" in (said := capsys.readouterr().err)
    assert "commonage login http://soon" in said
    find_server("http://late", None, None)
    assert "expired on" in capsys.readouterr().err
    save("http://soon", "5")
    find_server("http://soon", None, None)
    assert capsys.readouterr().err == ""


def test_readable_or_damaged_file_is_refused() -> None:
    path = save("http://a", "1")
    path.chmod(0o644)
    with pytest.raises(Failure, match="chmod 600"):
        load()
    path.chmod(0o600)
    path.write_text("{damaged")
    with pytest.raises(Failure, match="is damaged"):
        load()
    assert credentials_file() == path


@pytest.mark.parametrize(
    "typed",
    ["http://h:8000", "http://h:8000/", "h:8000", "http://h:8000/hub", "http://h:8000/services/commonage/nodes"],
)
def test_addresses_are_normalized(typed: str) -> None:
    assert normalize_url(typed) == "http://h:8000"


def test_data_folder_without_server_is_refused(tmp_path: Path) -> None:
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
