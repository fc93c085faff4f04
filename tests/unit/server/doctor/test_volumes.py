"""`commonage doctor` checks the folders that containers get."""

from pathlib import Path

import pytest

from commonage.domain.volumes import VolumeKind
from commonage.server.doctor import checks as doctor
from commonage.server.doctor.checks import Context, Finding
from commonage.server.settings.settings import Settings
from commonage.server.settings.storage import VolumeEntry

VOLUMES = (
    VolumeEntry(name="datasets", source="/srv/datasets"),
    VolumeEntry(name="projects", source="/srv/projects/{user}", mode="rw"),
    VolumeEntry(name="scratch", kind=VolumeKind.SCRATCH),
)


def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *mounted: str, engine: str = "docker") -> Finding:
    mounts = tmp_path / "mounts"
    mounts.write_text("".join(f"dev {one} ext4 rw 0 0\n" for one in ("/", "/srv", "/srv/datasets", *mounted)))
    monkeypatch.setattr(doctor, "_MOUNTS", mounts)
    settings = Settings(data_dir=tmp_path, engine=engine, volumes=VOLUMES, docker_mounts=("/opt/tools:/tools",))
    return doctor._volumes(Context(settings, None))


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
    finding = doctor._volumes(Context(Settings(data_dir=tmp_path / "own", engine="docker", docker_mounts=mounts), None))
    assert finding.verdict == "bad"
    assert "could be made to lead elsewhere" in finding.found
    assert "have it belong to root" in finding.advice
