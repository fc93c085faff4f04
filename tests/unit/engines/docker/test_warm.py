"""Choice of sessions that may start in a warm container, and the fields that its description leaves out."""

import asyncio
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.engines.containers.test_program import request
from tests.unit.engines.docker.slow_daemon import SlowDaemon

from commonage.domain.nodes import Allocation, Share
from commonage.domain.volumes import Mount, VolumeKind
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import AttemptFolders
from commonage.engines.containers.program import ContainerNetwork, program_of
from commonage.engines.docker.translate import ContainerContext, container_config
from commonage.engines.docker.warm.containers import StartWarm, WarmContainers, _Container, _KindOfSession
from commonage.engines.docker.warm.description import key_of, may_start_warm, warm_config
from commonage.engines.docker.warm.mounts import _make_place
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


def test_an_image_with_a_pipe_in_the_place_of_the_log_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "run" / "log"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    making = threading.Thread(target=_make_place, args=(os.fsencode(pipe), True), daemon=True)
    making.start()
    making.join(20)
    assert not making.is_alive()


@pytest.mark.anyio
async def test_a_stop_waits_until_the_container_has_its_new_name() -> None:
    """Otherwise it could get the name after the attempt was forgotten, and would never be removed."""
    nobody: Any = None
    daemon: Any = SlowDaemon()
    writer: Any = SimpleNamespace(close=lambda: None)
    warm = WarmContainers(daemon, nobody, 1, nobody, nobody, nobody)
    config = config_of("ada")
    kind = warm._kinds[key_of(config)] = _KindOfSession(config)
    reader = asyncio.StreamReader()
    kind.waiting.append(_Container("id", "commonage-warm-1", os.open("/proc/self/ns/mnt", os.O_RDONLY), reader, writer))
    await daemon.stop(warm.start(config, StartWarm("w-1", (), {}, lambda: False)))
    assert daemon.names == ["commonage-w-1"]
