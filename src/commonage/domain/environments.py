"""The catalogue: what a workload can run in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.workloads import Kind


@dataclass(frozen=True, slots=True)
class Environment:
    """One entry of the catalogue.

    On a process site it is a Python environment: made by uv from `requirements` (a declared list; pip's syntax), or
    one that is there already (`python`, the path of its interpreter). Elsewhere it is an `image`.
    `variables` are set for every workload in it. `kinds` are what it is offered for. `tenant`: only its members may use
    it (None: everybody). `needs_gpu`: nothing runs in it without a GPU; `least_vram_mib`: nor with less VRAM.
    """

    name: str
    title: str
    description: str = ""
    requirements: tuple[str, ...] = ()
    python: str | None = None
    image: str | None = None
    kinds: tuple[Kind, ...] = (Kind.JOB, Kind.SERVICE)
    variables: tuple[tuple[str, str], ...] = ()
    tenant: str | None = None
    needs_gpu: bool = False
    least_vram_mib: int = 0


class EnvironmentState(StrEnum):
    """Where an environment stands on a site: made on first use, then kept."""

    ABSENT = "absent"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """An environment on one site. `progress` is 0..1 where it is known; `detail` is for reading."""

    name: str
    site: str
    state: EnvironmentState
    detail: str = ""
    progress: float | None = None
