"""The catalogue of environments that a workload can run in."""

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

    On a process site it is a Python environment: made by uv from `requirements` (a list in pip's syntax), or an
    existing one (`python`, the path of its interpreter). Elsewhere it is an `image`. `variables` are set for every
    workload in it. `kinds` are the kinds of workloads that may use it. `tenant`: only its members may use it (None:
    everyone). `needs_gpu`: it requires a GPU; `min_vram_mib`: the least VRAM it requires.
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
    min_vram_mib: int = 0


class EnvironmentState(StrEnum):
    """The state of an environment on a site: made on first use, then kept."""

    ABSENT = "absent"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """An environment on one site. `progress` is 0..1, or None if unknown; `reason`: the current step, or the
    failure.
    """

    name: str
    site: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None


def left_out(requirements: Sequence[str]) -> str:
    """The override for uv (`--override`) that leaves out a package other packages require: a requirement nothing meets.

    Jupyter's packages pull in a package that builds a grammar of addresses at import, which takes half of a session's
    start time. A list that names the package itself gets it. requirements/left-out.txt does the same for Commonage's
    own dependencies.
    """
    return "" if any(_SLOW.match(one.strip()) for one in requirements) else _LEFT_OUT
