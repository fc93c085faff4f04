"""All GPU modes, best first. `commonage doctor site` shows all; the engine takes the best of those that it can use."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.engines.kubernetes.gpus.dra import Dra
from commonage.engines.kubernetes.gpus.env import Env
from commonage.engines.kubernetes.gpus.fractioning import Fractioning
from commonage.engines.kubernetes.gpus.hami import Hami
from commonage.engines.kubernetes.gpus.mode import ClusterObjects, Detection, GpuMode
from commonage.engines.kubernetes.gpus.plugin import Plugin

MODES: tuple[GpuMode, ...] = (Fractioning(), Dra(), Hami(), Env(), Plugin())
MODES_IN_USE: tuple[GpuMode, ...] = (Dra(), Hami(), Plugin())
"""Those of the engine: the others need GPUs that reservation Pods hold, which it does not make."""


def detect_all(cluster: ClusterObjects, modes: Sequence[GpuMode] = MODES) -> tuple[Detection, ...]:
    return tuple(mode.detect(cluster) for mode in modes)


def best_mode(cluster: ClusterObjects, modes: Sequence[GpuMode] = MODES) -> GpuMode | None:
    """The first mode that the cluster has; None without GPUs."""
    return next((mode for mode in modes if mode.detect(cluster).is_present), None)
