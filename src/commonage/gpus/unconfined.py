"""The part of the device port that most cards have no say in: holding shares, remembering faults. Inherited by each
kind of cards.

What really holds shares is `isolation.devices`, which stands around any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from commonage.ports.devices import Hold


class Unconfined:
    """Applies nothing: a share is kept by the variables alone."""

    def confine(self, hold: Hold) -> Mapping[str, str]:
        """Nothing to add."""
        return {}

    def release(self, attempt_id: str) -> None:
        """Nothing was applied."""

    def settle(self, live: Collection[str]) -> None:
        """Nothing is left from before."""

    def confined(self) -> Collection[str]:
        """None."""
        return ()

    def resume(self, uuid: str | None = None) -> None:
        """No fault is remembered."""

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        """Nothing of ours can fail an attempt."""
        return ()
