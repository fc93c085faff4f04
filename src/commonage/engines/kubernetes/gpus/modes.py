"""All GPU modes, best first. The engine takes the best that a site has; `commonage doctor site` shows all."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.engines.kubernetes.gpus.dra import Dra
from commonage.engines.kubernetes.gpus.env import Env
from commonage.engines.kubernetes.gpus.fractioning import Fractioning
from commonage.engines.kubernetes.gpus.hami import Hami
from commonage.engines.kubernetes.gpus.mode import ClusterObjects, Detection, GpuMode
from commonage.engines.kubernetes.gpus.plugin import Plugin

MODES: tuple[GpuMode, ...] = (Fractioning(), Dra(), Hami(), Env(), Plugin())


def detect_all(cluster: ClusterObjects, modes: Sequence[GpuMode] = MODES) -> tuple[Detection, ...]:
    return tuple(mode.detect(cluster) for mode in modes)


def best_mode(cluster: ClusterObjects, modes: Sequence[GpuMode] = MODES) -> GpuMode | None:
    """The first mode that the cluster has; None without GPUs."""
    return next((mode for mode in modes if mode.detect(cluster).is_present), None)
