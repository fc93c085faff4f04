"""Where something goes that fits in several places: one small module for each policy, behind one protocol.

The pass asks a policy about one shape at a time. What may start at all, and when, is not its business; that something
fits is settled before its choice counts.

`registry.POLICIES` has them by name, each made by `maker(grid, mix, seed)` for a grid, a mix of typical workloads and a
seed for what it decides by chance; `registry.DEFAULT` names ours. docs/contribute/add-a-policy.md tells how to add one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commonage.placement.shapes import Floats, Shape


class Policy(Protocol):
    """A policy over one grid; it may remember rows (`grid.Rows`) and learn from what arrives, and nothing else."""

    def arrived(self, shape: Shape) -> None:
        """A workload of this shape was submitted: what it may learn from."""
        ...

    def costs(self, shape: Shape) -> Floats:
        """[N]: what it would cost to put the shape on each node, lower is better, inf where it does not fit.

        To be read only, until the grid changes. Ties go to the node with the lowest number.
        """
        ...

    def cards(self, shape: Shape, node: int) -> Sequence[int]:
        """The cards of node `node` for a shape that fits there: as many as it takes, none for one without GPU."""
        ...
