"""The protocol that each level of isolation implements. Called by `devices.IsolatedDevices` only, under its lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from commonage.domain.fleet import Device, Isolation
from commonage.ports.devices import Hold


class Level(Protocol):
    """One way of holding shares. `apply` and `release` are idempotent, and may be called by a later process.

    By default nothing is applied besides what `apply` gives, and nothing of ours runs.
    """

    @property
    def isolation(self) -> Isolation:
        """Which level it is."""
        ...

    def available(self, device: Device) -> str:
        """Empty if it holds on this device, else why it does not and what would change that, in half a sentence."""
        ...

    def apply(self, hold: Hold) -> Mapping[str, str]:
        """Hold these shares, all of this level and each a part of its card; gives the variables to add.

        Raises NotConfined.
        """
        ...

    def release(self, hold: Hold) -> None:
        """The attempt has no process any more. What cannot be undone (a card that fell off) is logged, not raised."""
        return

    def settle(self, holds: Sequence[Hold]) -> None:
        """After a start: these are all that is applied. Take up again what serves them, end what serves nobody."""
        return

    def watch(self) -> Mapping[str, tuple[str, ...]]:
        """Look after what serves the shares; gives notices by device uuid. Called every few seconds."""
        return {}

    def close(self) -> None:
        """The server ends. What attempts still need stays."""
        return


def is_nvidia(device: Device) -> bool:
    """False for AMD's cards, whose compute capability is the name of an architecture, like gfx942."""
    return not device.compute_capability.startswith("gfx")
