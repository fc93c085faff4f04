"""Checks daemon settings that safe containers require, as the daemon reports them (`/info`).

Pure. Used by engines, their doctors and the node agent: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DaemonMapsUsers, DaemonWithoutSeccomp


@dataclass(frozen=True, slots=True)
class DaemonSummary:
    """Summary of a daemon for an admin; `advice` is empty if no action is needed. `faults`: those of nodes, by name."""

    said: str
    advice: str
    faults: tuple[tuple[str, Reason], ...] = ()


MAY_GAIN = (
    "its containers may gain privileges, by a set-user-ID program say (no-new-privileges is off): run `commonage node "
    'join` for it again, or set "no-new-privileges": true in /etc/docker/daemon.json there and restart Docker'
)
"""Services of a Swarm cannot set it, so the node's daemon must be configured."""
_SAYS_SO_SINCE = 25


def swarm_faults(info: Mapping[str, Any]) -> tuple[Reason, ...]:
    """Why a Swarm node with this daemon should get no work."""
    options = " ".join(info.get("SecurityOptions") or ())
    found: list[Reason] = []
    if "name=userns" in options:
        found.append(DaemonMapsUsers())
    if "name=seccomp" not in options or "profile=unconfined" in options:
        found.append(DaemonWithoutSeccomp())
    return tuple(found)


def may_gain(info: Mapping[str, Any]) -> bool | None:
    """True if containers of this daemon may gain privileges unless they forbid it; None: it does not say.

    Current daemons say so (moby 24 and later); for older ones a running container must be inspected.
    """
    if "name=no-new-privileges" in (info.get("SecurityOptions") or ()):
        return False
    version = str(info.get("ServerVersion", "")).partition(".")[0]
    return True if version.isdecimal() and int(version) >= _SAYS_SO_SINCE else None
