"""Placement policies: score the nodes on which a workload fits. One small module each, behind one protocol.

The pass asks a policy about one shape at a time. It does not decide what may start, or when.

`registry.POLICIES` maps names to makers: `maker(grid, mix, seed)` makes a policy for a grid, a mix of typical workloads
and a seed for random decisions. `registry.DEFAULT` is the default name. See docs/contribute/add-a-policy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from commonage.scheduler.model.shapes import Bools, Floats, Shape


class Policy(Protocol):
    """A policy over one grid; it may cache rows (`grid.Rows`) and learn from arrivals, and keeps no other state."""

    def arrived(self, shape: Shape) -> None: ...

    def costs(self, shape: Shape, among: Bools | None = None) -> Floats:
        """[N]: the cost of each node for the shape, lower is better, inf where it does not fit.

        Only nodes in `among` [N] count (None: all): the values of the others may be anything, and need no computing.
        Read-only, until the grid changes. Ties go to the node with the lowest number.
        """
        ...

    def devices(self, shape: Shape, node: int) -> Sequence[int]:
        """The devices of node `node` for a shape that fits there: as many as it takes, none for a shape without GPU."""
        ...
