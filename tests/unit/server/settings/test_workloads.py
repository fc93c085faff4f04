"""Volumes in the settings."""

from typing import Any

import pytest
from pydantic import ValidationError

from commonage.domain.errors import InvalidInput
from commonage.domain.volumes import VolumeKind
from commonage.server.platform import declared_platform
from commonage.server.settings.settings import Settings


def declared(**volume: Any) -> Settings:
    return Settings(volumes=[volume], engine="docker", tenants=[{"name": "lab"}])  # type: ignore[arg-type, list-item]  # as a file has it


def test_folder_is_read_only_by_default_and_other_volumes_are_writable() -> None:
    [folder] = declared_platform(declared(name="datasets", source="/srv/datasets", tenants=["lab"])).volumes
    assert (folder.title, folder.writable, folder.tenants) == ("datasets", False, ("lab",))
    [docker] = declared_platform(declared(name="results", kind="docker", size="5GiB")).volumes
    assert (docker.kind, docker.writable, docker.size_mib) == (VolumeKind.DOCKER, True, 5120)
    [own] = declared_platform(declared(name="own", source="/srv/{user}", mode="rw")).volumes
    assert own.writable


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ({"name": "x"}, "needs a source"),
        ({"name": "x", "source": "/var/lib/docker"}, "leads to the Docker daemon"),
        ({"name": "x", "source": "/srv", "mode": "wr"}, "'ro' or 'rw'"),
        ({"name": "x", "source": "/srv", "quota": "5GiB"}, "not permitted"),
    ],
)
def test_invalid_volume_is_refused(volume: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        declared(**volume)


def test_repeated_name_is_refused() -> None:
    twice = [{"name": "x", "source": "/srv"}, {"name": "x", "source": "/data"}]
    with pytest.raises(ValidationError, match="'x' is defined twice"):
        Settings(volumes=twice)  # type: ignore[arg-type]  # as a file has it


def test_unknown_tenant_or_engine_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the volume x: tenants: 'lib' does not exist. Known: commons, lab"):
        declared_platform(declared(name="x", source="/srv", tenants=["lib"]))
    settings = declared(name="x", kind="docker").model_copy(update={"engine": "process"})
    with pytest.raises(InvalidInput, match="Volume x is a Docker volume"):
        declared_platform(settings)
