"""What of a daemon's own settings containers of ours cannot do without, as it says itself (`/info`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAY_GAIN = (
    "its containers may gain privileges, by a set-user-ID program say (no-new-privileges is off): run `commonage node "
    'join` for it again, or set "no-new-privileges": true in /etc/docker/daemon.json there and restart Docker'
)
"""What a service of a Swarm cannot say, so that the machine's daemon has to be told."""
_SAYS_SO_SINCE = 25


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


def may_gain(info: Mapping[str, Any]) -> bool | None:
    """Whether containers of this daemon may gain privileges if they do not forbid it; None: it does not say.

    Daemons of today do (moby 24 and later); for older ones what runs must be looked at.
    """
    if "name=no-new-privileges" in (info.get("SecurityOptions") or ()):
        return False
    version = str(info.get("ServerVersion", "")).partition(".")[0]
    return True if version.isdecimal() and int(version) >= _SAYS_SO_SINCE else None
