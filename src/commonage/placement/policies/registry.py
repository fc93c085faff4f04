"""The placement policies that the setting `policy` may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commonage.placement.grid import Grid
from commonage.placement.mix import Mix
from commonage.placement.policies import Policy
from commonage.placement.policies.best_fit import BestFit
from commonage.placement.policies.expected_waste import ExpectedWaste
from commonage.placement.policies.spread import Spread

Maker = Callable[[Grid, Mix, int], Policy]

POLICIES: Final[dict[str, Maker]] = {
    "best-fit": BestFit,
    "spread": Spread,
    "expected-waste": ExpectedWaste,
}

DEFAULT: Final = "expected-waste"
