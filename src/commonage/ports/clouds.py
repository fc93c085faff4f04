"""Where machines are rented: what there is of ours, one more, one less. Implemented in `commonage.clouds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commonage.domain.fleets import Machine


class Cloud(Protocol):
    """One fleet's part of a cloud. Methods raise Unavailable with the cloud's words; they may take a minute."""

    @property
    def provider(self) -> str:
        """What it is called."""
        ...

    async def price_per_h(self) -> float | None:
        """What one machine costs an hour; None where the cloud does not tell."""
        return None

    async def machines(self) -> Sequence[Machine]:
        """All machines there, also those of others and those that failed; those that are gone are left out.

        One that was just created may be left out for a while, one that was destroyed may still be among them.
        """
        ...

    async def create(self, name: str, user_data: str) -> Machine:
        """One more, which begins with this user data. Returns when the cloud has accepted it."""
        ...

    async def destroy(self, machine: Machine) -> None:
        """One less, soon. One that is gone is no error."""
        ...
