"""`commonage doctor` before a server is started."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from commonage.domain.volumes import VolumeKind
from commonage.resources.workloads import VolumeEntry
from commonage.server.commands.doctor import doctor as verb
from commonage.server.doctor import checks as doctor
from commonage.server.doctor.checks import Outcome
from commonage.server.settings.settings import Settings


def checked(folder: Path, *words: str) -> dict[str, dict[str, str]]:
    (folder / "commonage.toml").write_text(
        f'data_dir = "{folder}/data"\ndocker_url = "unix://{folder}/no.sock"\n'
        'registry = true\nregistry_host = "hub.example.org"\ngpus = "none"\n'
    )
    done = CliRunner().invoke(verb, ["--config", str(folder / "commonage.toml"), "--json", *words])
    return {one["check"]: one for one in json.loads(done.stdout)}


def test_engine_option_selects_checks(tmp_path: Path) -> None:
    assert "not used" in checked(tmp_path)["docker"]["found"]
    found = checked(tmp_path, "--engine", "docker")["docker"]
    assert (found["verdict"], "does not answer (at unix://" in found["found"]) == ("bad", True)


@pytest.mark.parametrize("engine", ["docker", "swarm"])
def test_container_engines_need_no_compiler_or_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(doctor, "_writable", lambda _place: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    assert [checked(tmp_path)[one]["verdict"] for one in ("compiler", "cgroups")] == ["note", "note"]
    found = checked(tmp_path, "--engine", engine)
    assert [found[one]["verdict"] for one in ("compiler", "cgroups")] == ["ok", "ok"]


def test_untrusted_registry_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TRUSTED", tmp_path / "certs.d")
    found = checked(tmp_path, "--engine", "docker")["registry"]
    place = tmp_path / "certs.d" / "hub.example.org:5000" / "ca.crt"
    assert found["advice"].endswith(f"install -D -m 644 {tmp_path}/data/authority/ca.crt {place}")
    place.parent.mkdir(parents=True)
    place.touch()
    assert checked(tmp_path, "--engine", "docker")["registry"]["verdict"] != "bad"
    assert checked(tmp_path, "--engine", "process")["registry"]["verdict"] != "bad"


def test_home_quota_is_reported_as_not_enforced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(tmp_path)["homes"]["verdict"] == "ok"
    monkeypatch.setenv("COMMONAGE_HOME_QUOTA", "50GiB")
    found = checked(tmp_path)["homes"]
    assert (found["verdict"], "home_quota is 50 GiB" in found["found"]) == ("note", True)
    assert "not enforced" in found["found"]


def test_shared_origin_of_sessions_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(tmp_path)["origins"]["verdict"] == "ok"
    monkeypatch.setenv("COMMONAGE_BIND", "0.0.0.0")
    shared = checked(tmp_path)["origins"]
    assert (shared["verdict"], "Set session_host" in shared["advice"]) == ("note", True)


def test_unresolved_wildcard_name_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONAGE_SESSION_HOST", "*.hub.invalid")
    assert "needs public_url" in checked(tmp_path)["origins"]["found"]
    monkeypatch.setenv("COMMONAGE_PUBLIC_URL", "https://hub.invalid")
    found = checked(tmp_path)["origins"]
    assert (found["verdict"], "wildcard record *.hub.invalid" in found["advice"]) == ("bad", True)


VOLUMES = (
    VolumeEntry(name="datasets", source="/srv/datasets"),
    VolumeEntry(name="projects", source="/srv/projects/{user}", mode="rw"),
    VolumeEntry(name="scratch", kind=VolumeKind.SCRATCH),
)


def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *mounted: str, engine: str = "docker") -> Outcome:
    mounts = tmp_path / "mounts"
    mounts.write_text("".join(f"dev {one} ext4 rw 0 0\n" for one in ("/", "/srv", "/srv/datasets", *mounted)))
    monkeypatch.setattr(doctor, "_MOUNTS", mounts)
    settings = Settings(data_dir=tmp_path, engine=engine, volumes=VOLUMES, docker_mounts=("/opt/tools:/tools",))
    return doctor._volumes(settings)


def test_mounts_below_a_folder_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    below = ("/srv/datasets/a\\040disk", "/srv/projects/ada/x", "/opt/tools/cuda")
    finding = found(monkeypatch, tmp_path, *below, "/srv/datasets-of-others/x")
    assert finding.verdict == "note"
    assert finding.found.endswith(": /opt/tools/cuda, /srv/datasets/a disk, /srv/projects/ada/x")
    assert "declare each as a volume" in finding.advice


@pytest.mark.parametrize(("engine", "mounted"), [("docker", ()), ("process", ("/srv/datasets/disk",))])
def test_folders_without_mounts_below_are_ok(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, mounted: tuple[str, ...]
) -> None:
    assert found(monkeypatch, tmp_path, *mounted, engine=engine).verdict == "ok"


def test_folder_that_others_can_redirect_is_bad(tmp_path: Path) -> None:
    (tmp_path / "open" / "data").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    mounts = (f"{tmp_path}/open/data:/data",)
    finding = doctor._volumes(Settings(data_dir=tmp_path / "own", engine="docker", docker_mounts=mounts))
    assert finding.verdict == "bad"
    assert "could be made to lead elsewhere" in finding.found
    assert "have it belong to root" in finding.advice
