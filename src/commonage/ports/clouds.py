"""Lists, creates and deletes nodes of a node pool. Implemented in `clouds`, used by `control.nodes.node_pools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commonage.domain.nodes import Machine


class Cloud(Protocol):
    """One node pool's part of a cloud. Methods raise Unavailable with the cloud's message; they may take a minute."""

    @property
    def provider(self) -> str: ...

    @property
    def is_autoscaled(self) -> bool:
        """Whether its nodes join by themselves, under names of their own, and the cloud removes idle ones.

        `create` then makes a request for a node, and `destroy` takes back a request. Which nodes belong to the pool is
        the cloud's to say.
        """
        return False

    async def price_per_h(self) -> float | None:
        """The price of one node per hour; None if the cloud does not report it."""
        return None

    async def machines(self) -> Sequence[Machine]:
        """All nodes in the cloud, including those of other owners and failed ones; deleted ones are left out.

        A node that was just created may be missing for a while; a deleted one may still be listed.
        """

    async def create(self, name: str, user_data: str) -> Machine:
        """Create a node that starts with this user data. Returns when the cloud has accepted it."""

    async def destroy(self, machine: Machine) -> None:
        """Delete a node, soon. A node that is gone is no error."""
