"""All placement policies by name. Read by the pass, the settings and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commonage.placement.fragmentation import Mix
from commonage.placement.grid import Grid
from commonage.placement.policies import Policy
from commonage.placement.policies.best_fit import BestFit
from commonage.placement.policies.dot_product import DotProduct
from commonage.placement.policies.expected_waste import ExpectedWaste
from commonage.placement.policies.fgd import Fgd
from commonage.placement.policies.gpu_clustering import GpuClustering
from commonage.placement.policies.gpu_packing import GpuPacking
from commonage.placement.policies.random_choice import RandomChoice
from commonage.placement.policies.spread import Spread

Maker = Callable[[Grid, Mix, int], Policy]

POLICIES: Final[dict[str, Maker]] = {
    "random": RandomChoice,
    "dot-product": DotProduct,
    "gpu-clustering": GpuClustering,
    "gpu-packing": GpuPacking,
    "best-fit": BestFit,
    "fgd": Fgd,
    "spread": Spread,
    "expected-waste": ExpectedWaste,
}

DEFAULT: Final = "expected-waste"
