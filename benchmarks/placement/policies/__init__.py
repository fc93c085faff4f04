"""The placement policies of the benchmark, in the order of the rows: our own, and baselines from publications."""

from __future__ import annotations

from typing import Final

from benchmarks.placement.policies.dot_product import DotProduct
from benchmarks.placement.policies.fgd import Fgd
from benchmarks.placement.policies.gpu_clustering import GpuClustering
from benchmarks.placement.policies.gpu_packing import GpuPacking
from benchmarks.placement.policies.random_choice import RandomChoice
from commonage.scheduler.policies import registry
from commonage.scheduler.policies.registry import Maker

POLICIES: Final[dict[str, Maker]] = {
    "random": RandomChoice,
    "dot-product": DotProduct,
    "gpu-clustering": GpuClustering,
    "gpu-packing": GpuPacking,
    "best-fit": registry.POLICIES["best-fit"],
    "fgd": Fgd,
    **registry.POLICIES,
}
