"""The placement policies that the setting `policy` may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.expected_waste import ExpectedWaste
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.scored import BestFit, Spread

Maker = Callable[[Grid, WorkloadMix, int], Policy]

POLICIES: Final[dict[str, Maker]] = {
    "best-fit": BestFit,
    "spread": Spread,
    "expected-waste": ExpectedWaste,
}

DEFAULT: Final = "expected-waste"
