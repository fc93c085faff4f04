"""Daemon settings that safe containers require, as the daemon reports them (`/info`). Pure; used by the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAY_GAIN = (
    "its containers may gain privileges, by a set-user-ID program say (no-new-privileges is off): run `commonage node "
    'join` for it again, or set "no-new-privileges": true in /etc/docker/daemon.json there and restart Docker'
)
"""Services of a Swarm cannot set it, so the node's daemon must be configured."""
_SAYS_SO_SINCE = 25


def swarm_faults(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a Swarm node with this daemon should get no work; each is a sentence that also says what to do."""
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


def may_gain(info: Mapping[str, Any]) -> bool | None:
    """True if containers of this daemon may gain privileges unless they forbid it; None: it does not say.

    Current daemons say so (moby 24 and later); for older ones a running container must be inspected.
    """
    if "name=no-new-privileges" in (info.get("SecurityOptions") or ()):
        return False
    version = str(info.get("ServerVersion", "")).partition(".")[0]
    return True if version.isdecimal() and int(version) >= _SAYS_SO_SINCE else None
