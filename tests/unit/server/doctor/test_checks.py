"""What `commonage doctor` says before anything is started."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from commonage.server.commands.doctor import doctor as verb
from commonage.server.doctor import checks as doctor


def looked(folder: Path, *words: str) -> dict[str, dict[str, str]]:
    (folder / "commonage.toml").write_text(
        f'data_dir = "{folder}/data"\ndocker_url = "unix://{folder}/no.sock"\n'
        'registry = true\nregistry_host = "hub.example.org"\ngpus = "none"\n'
    )
    done = CliRunner().invoke(verb, ["--config", str(folder / "commonage.toml"), "--json", *words])
    return {one["check"]: one for one in json.loads(done.stdout)}


def test_it_looks_at_the_engine_that_up_is_given(tmp_path: Path) -> None:
    assert "not used" in looked(tmp_path)["docker"]["found"]
    found = looked(tmp_path, "--engine", "docker")["docker"]
    assert (found["verdict"], "does not answer (at unix://" in found["found"]) == ("bad", True)


@pytest.mark.parametrize("engine", ["docker", "swarm"])
def test_what_processes_alone_need_is_not_asked_of_engines_of_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(doctor, "_writable", lambda _place: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    assert [looked(tmp_path)[one]["verdict"] for one in ("compiler", "cgroups")] == ["note", "note"]
    found = looked(tmp_path, "--engine", engine)
    assert [found[one]["verdict"] for one in ("compiler", "cgroups")] == ["ok", "ok"]


def test_a_registry_that_this_nodes_docker_does_not_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TRUSTED", tmp_path / "certs.d")
    found = looked(tmp_path, "--engine", "docker")["registry"]
    place = tmp_path / "certs.d" / "hub.example.org:5000" / "ca.crt"
    assert found["advice"].endswith(f"install -D -m 644 {tmp_path}/data/authority/ca.crt {place}")
    place.parent.mkdir(parents=True)
    place.touch()
    assert looked(tmp_path, "--engine", "docker")["registry"]["verdict"] != "bad"
    assert looked(tmp_path, "--engine", "process")["registry"]["verdict"] != "bad"


def test_it_says_that_home_quota_is_not_enforced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(tmp_path)["homes"]["verdict"] == "ok"
    monkeypatch.setenv("COMMONAGE_HOME_QUOTA", "50GiB")
    found = looked(tmp_path)["homes"]
    assert (found["verdict"], "home_quota is 50 GiB" in found["found"]) == ("note", True)
    assert "not enforced" in found["found"]


def test_it_says_whether_sessions_have_origins_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(tmp_path)["origins"]["verdict"] == "ok"
    monkeypatch.setenv("COMMONAGE_BIND", "0.0.0.0")
    shared = looked(tmp_path)["origins"]
    assert (shared["verdict"], "Set session_host" in shared["advice"]) == ("note", True)


def test_it_says_what_is_wrong_with_the_wildcard_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONAGE_SESSION_HOST", "*.hub.invalid")
    assert "needs public_url" in looked(tmp_path)["origins"]["found"]
    monkeypatch.setenv("COMMONAGE_PUBLIC_URL", "https://hub.invalid")
    found = looked(tmp_path)["origins"]
    assert (found["verdict"], "wildcard record *.hub.invalid" in found["advice"]) == ("bad", True)
