"""Resource usage by owner, tenant or workload: computed from attempts and their allocations, never stored
separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.tenants import Amounts


@dataclass(frozen=True, slots=True)
class Usage:
    """Held resources times hours, of one owner, tenant or workload. Shares count as held, used or not.

    `gpu_gib_h`: GiB of VRAM times hours. `gpu_h`: fractions of GPUs times hours.
    """

    subject: str
    workloads: int
    gpu_gib_h: float
    gpu_h: float
    cpu_h: float
    memory_gib_h: float


@dataclass(frozen=True, slots=True)
class PastAllocation:
    """A past allocation of an attempt, with its begin and end in unix seconds."""

    attempt_id: str
    tenant: str
    owner: str
    amounts: Amounts
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of each unit, in the installation's own currency; the default is zero."""

    gpu_gib_h: float = 0.0
    cpu_h: float = 0.0
    memory_gib_h: float = 0.0
    currency: str = ""

    def cost(self, usage: Usage) -> float:
        """The cost of `usage`."""
        return usage.gpu_gib_h * self.gpu_gib_h + usage.cpu_h * self.cpu_h + usage.memory_gib_h * self.memory_gib_h
