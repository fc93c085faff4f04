"""Figures published by the authors of "Beware of Fragmentation" (USENIX ATC 2023), to compare with ours.

GPU allocation in per cent once the requests add up to 130% of the GPUs, means over the seeds 42 to 51, from the result
files in the repository of their simulator (hkust-adsl/kubernetes-scheduler-simulator).
"""

from __future__ import annotations

from typing import Final

_POLICIES: Final = ("random", "dot-product", "gpu-clustering", "gpu-packing", "best-fit", "fgd")

PUBLISHED_130: Final[dict[str, dict[str, float]]] = {
    name: dict(zip(_POLICIES, figures, strict=True))
    for name, figures in {
        "default": (87.47, 90.85, 91.88, 92.00, 93.08, 95.39),
        "cpu100": (89.11, 91.95, 92.64, 92.72, 93.44, 95.35),
        "gpushare40": (86.00, 89.56, 90.02, 90.03, 91.69, 94.15),
        "gpuspec10": (87.43, 90.39, 92.18, 92.46, 93.30, 94.95),
        "multigpu20": (88.69, 92.06, 93.56, 93.71, 93.93, 95.65),
    }.items()
}


def published_130(workloads: str, policy: str) -> float | None:
    """The published figure for a list and a policy; None if not published."""
    return PUBLISHED_130.get(workloads, {}).get(policy)
