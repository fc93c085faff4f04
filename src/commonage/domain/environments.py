"""The catalogue: what a workload can run in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons import Reason
from commonage.domain.workloads import Kind

_SLOW = re.compile(r"rfc3987[-_.]syntax\b", re.IGNORECASE)
_LEFT_OUT = 'rfc3987-syntax ; python_version < "3"\n'


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
    """An environment on one site. `progress` is 0..1 where it is known; `reason`: what is done, or why it failed."""

    name: str
    site: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None


def left_out(requirements: Sequence[str]) -> str:
    """What uv is to leave out (`--override`) though packages of this list ask for it: a requirement nothing meets.

    Jupyter's packages bring one that makes a grammar of addresses whenever it is imported, which is half of the time
    that a session takes to start. A list that names it itself gets it. requirements/left-out.txt says the same of ours.
    """
    return "" if any(_SLOW.match(one.strip()) for one in requirements) else _LEFT_OUT
