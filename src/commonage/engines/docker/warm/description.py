"""Decides whether a session may start in a warm container, and describes such containers to the daemon. Pure.

Used by the launcher.

A warm container has a session's description without all that names its user, workload or attempt. A session gets one
only if the rest is the same: the image, the tenant's network, the limits, the injected files, volumes and mounts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import LABEL
from commonage.engines.containers.files.control_folder import INSIDE, LOG_INSIDE
from commonage.engines.containers.program import FIND_PYTHON, Program
from commonage.engines.rundir.preloading import UNSEEN
from commonage.engines.rundir.programs import PRELOADING, SERVING, SESSION_COMMAND
from commonage.engines.settings import DockerSettings

WARM = f"{LABEL}.warm"
"""Label of a container that was created ahead."""
_NAMES = ("attempt", "workload", "name", "owner")
_TEMPLATE = Path(__file__).with_name("template.py")
_COMMAND = [
    "/bin/sh", "-c", FIND_PYTHON, _TEMPLATE.read_text(encoding="utf-8"), SESSION_COMMAND[0],
    PRELOADING.read_text(encoding="utf-8"), SERVING.read_text(encoding="utf-8"),
]  # fmt: skip


def may_start_warm(request: StartRequest, settings: DockerSettings) -> bool:
    """False if its container must be made for it: it has a GPU, a command of its own, or a mount of its user's own."""
    return (
        request.kind is Kind.SESSION
        and not request.command
        and not request.allocation.shares
        and not request.gang
        and request.bundle_path is None
        and not any(mount.writable for mount in request.mounts)
        and not any("{user}" in mount.source for mount in settings.mounts)
    )


def warm_config(config: Mapping[str, Any], program: Program, image: str) -> dict[str, Any]:
    """The description of a warm container for sessions like this one. `image` is the id of its image."""
    own = (program.home, INSIDE, LOG_INSIDE)
    host = config["HostConfig"]
    return {
        **{name: value for name, value in config.items() if name != "Hostname"},
        "Image": image,
        "Entrypoint": _COMMAND,
        "Cmd": [],
        # What its interpreter and its linker read. The rest comes with the session.
        "Env": [text for text in config["Env"] if "=" not in text or text.startswith((*UNSEEN, "NVIDIA_"))],
        "WorkingDir": "/",
        "Labels": {
            **{name: value for name, value in config["Labels"].items() if name not in _OF_ATTEMPT},
            WARM: "yes",
        },
        "HostConfig": {**host, "Mounts": [one for one in host["Mounts"] if one["Target"] not in own]},
    }


_OF_ATTEMPT = frozenset(f"{LABEL}.{name}" for name in _NAMES)


def key_of(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
