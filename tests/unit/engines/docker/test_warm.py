"""Which sessions may start in a container that waits, and what its description leaves out."""

import json
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.domain.nodes import Allocation, Share
from commonage.domain.volumes import Mount, VolumeKind
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import AttemptFolders
from commonage.engines.containers.program import ContainerNetwork, program_of
from commonage.engines.docker.translate import ContainerContext, container_config
from commonage.engines.docker.warm.description import key_of, may_start_warm, warm_config
from commonage.engines.settings import DockerSettings
from commonage.engines.settings import Mount as AdminMount

GPU = Share("GPU-a", 0, "A100", 8192, 500, False, 40960)
SESSION: dict[str, Any] = {"kind": Kind.SESSION, "command": ()}
PRIVATE = Mount("mine", VolumeKind.FOLDER, "/srv/mine", "/volumes/mine", writable=True)


def config_of(owner: str, **changes: Any) -> dict[str, Any]:
    asked = request(**SESSION, owner=owner, attempt_id=f"of-{owner}", secrets=(("TOKEN", f"{owner}-token"),), **changes)
    program = program_of(asked, ContainerNetwork("10.0.0.1", frozenset({8000})), {}, {})
    folders = AttemptFolders(f"/w/{owner}", f"/c/{owner}", f"/l/{owner}")
    context = ContainerContext("0123456789abcdef", "net", folders, "/injected", "0:0")
    config = container_config(asked, program, context, "entry", DockerSettings())
    return warm_config(config, program, "sha256:1")


def test_description_names_no_user_and_fits_all() -> None:
    assert key_of(config_of("ada")) == key_of(config_of("bob"))
    text = json.dumps(config_of("ada") | {"Entrypoint": []})
    assert "ada" not in text
    assert "Hostname" not in config_of("ada")


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "other"},
        {"allocation": Allocation("of-bob", "local", "here", 1000, 512, (), 0.0)},
        {"variables": (("PYTHONOPTIMIZE", "1"),)},
    ],
)
def test_sessions_that_differ_in_more_than_their_user_get_another_container(changes: dict[str, Any]) -> None:
    assert key_of(config_of("ada")) != key_of(config_of("bob", **changes))


def test_no_container_that_waits_can_see_a_gpu() -> None:
    assert "NVIDIA_VISIBLE_DEVICES=void" in config_of("ada")["Env"]


@pytest.mark.parametrize(
    ("changes", "mounts", "may"),
    [
        ({}, (), True),
        ({"kind": Kind.JOB}, (), False),
        ({"command": ("sleep", "1")}, (), False),
        ({"allocation": Allocation("w-1", "local", "here", 1000, 256, (GPU,), 0.0)}, (), False),
        ({"mounts": (PRIVATE,)}, (), False),
        ({}, (AdminMount("/srv/{tenant}", "/shared", True),), True),
        ({}, (AdminMount("/srv/{user}", "/mine", True),), False),
    ],
)
def test_sessions_with_something_of_their_own_start_cold(
    changes: dict[str, Any], mounts: tuple[AdminMount, ...], may: bool
) -> None:
    assert may_start_warm(request(**{**SESSION, **changes}), DockerSettings(mounts=mounts)) is may
