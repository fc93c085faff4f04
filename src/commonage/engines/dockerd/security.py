"""What of a daemon's own settings containers of ours cannot do without, as it says itself (`/info`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def swarm_faults(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a machine of a Swarm with this daemon should be given no work; each is a sentence of what to do, too."""
    options = " ".join(info.get("SecurityOptions") or ())
    found = []
    if "name=userns" in options:
        found.append(
            "its Docker maps users (userns-remap), so that no container can open its own folder on the site's share: "
            "take userns-remap out of /etc/docker/daemon.json there and restart Docker"
        )
    if "name=seccomp" not in options or "profile=unconfined" in options:
        found.append(
            "its Docker has no seccomp profile, so that containers may make any system call: take seccomp-profile out "
            "of /etc/docker/daemon.json there and restart Docker, on a kernel that has seccomp"
        )
    return tuple(found)
