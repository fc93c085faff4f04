"""The protocol that each level of isolation implements. Called by `devices.IsolatedDevices` only, under its lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.ports.devices import ShareAssignment


class Level(Protocol):
    """One way to enforce shares. `apply` and `release` are idempotent, and may be called by a later process.

    By default only the variables of `apply` are set, and no process is started.
    """

    @property
    def isolation(self) -> Isolation: ...

    def why_unavailable(self, device: Device) -> Reason | None:
        """None if it is available on this device."""
        ...

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Enforce these shares, all of this level and each a part of its GPU; returns variables to add.

        Raises ShareNotEnforced.
        """
        ...

    def release(self, assignment: ShareAssignment) -> None:
        """Called when the attempt has no process any more.

        A failure (a GPU that fell off the bus) is logged, not raised.
        """
        return

    def settle(self, assignments: Sequence[ShareAssignment]) -> None:
        """Called after a start with all applied holds: keep the processes that serve them, end the others."""
        return

    def watch(self) -> Mapping[str, tuple[Reason, ...]]:
        """Check the processes that serve the shares; returns notices by device uuid. Called every few seconds."""
        return {}

    def close(self) -> None:
        """The server ends. Resources that attempts still need stay."""
        return


def is_nvidia(device: Device) -> bool:
    """False for AMD's GPUs, whose compute capability is the name of an architecture, like gfx942."""
    return not device.compute_capability.startswith("gfx")
