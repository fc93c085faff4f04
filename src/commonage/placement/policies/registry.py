"""All placement policies by name. Read by the pass, the settings and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commonage.placement.fragmentation import Mix
from commonage.placement.grid import Grid
from commonage.placement.policies import Policy
from commonage.placement.policies.best_fit import BestFit

Maker = Callable[[Grid, Mix, int], Policy]

POLICIES: Final[dict[str, Maker]] = {
    "best-fit": BestFit,
}

DEFAULT: Final = "best-fit"
