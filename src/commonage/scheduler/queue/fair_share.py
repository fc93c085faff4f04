"""Fair share: tracks the decaying usage of each user and tenant, so that accounts with little usage come first.

The live state reports each allocation that begins and ends; the queue reads the debts of all accounts at once. An
account is one user within one tenant. An allocation counts by its dominant share: the largest of its parts of all CPUs,
all memory and all GPUs (dominant resource fairness, Ghodsi et al. 2011). One capacity-second is the whole cluster for
one second.

A debt halves in each half-life. While an allocation is held, the debt grows by its share every second. At the start it
also grows by the share times the entry penalty, so that a hundred short jobs are not free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonage.domain.tenants import Amounts
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Floats, Ints

MAX_HALF_LIVES = 60.0  # after this number of half-lives the origin moves, so that no number grows too large


@dataclass(frozen=True, slots=True)
class Capacity:
    """The resources of all nodes together, each at least 1."""

    cpus_milli: int = 1
    memory_mib: int = 1
    gpu_milli: int = 1

    @classmethod
    def of(cls, grid: Grid) -> Capacity:
        """Counts all known nodes, ready or not: a request that waits for a drained node gains no precedence."""
        devices = 1000 * int(np.count_nonzero(grid.total_mib))
        return cls(max(1, int(grid.cpus_total.sum())), max(1, int(grid.memory_total.sum())), max(1, devices))

    def share(self, amounts: Amounts) -> float:
        parts = (
            amounts.cpus_milli / self.cpus_milli,
            amounts.memory_mib / self.memory_mib,
            amounts.gpu_milli / self.gpu_milli,
        )
        return min(1.0, max(parts))  # after nodes have left, allocations may exceed the capacity


def _renamed(name: str, change: tuple[str, str] | None) -> str:
    return change[1] if change is not None and change[0] == name else name


class Usage:
    """The debts of all accounts. Accounts and tenants are numbered in order of appearance; numbers never change.

    Each account keeps two numbers: `rate`, the shares it holds now, and `past`, the sum of its begins and ends at the
    origin of time. An allocation held from a to b owes share * K * (2^-((t-b)/H) - 2^-((t-a)/H)) at t, with
    K = H / ln 2: a sum in which every begin and every end is independent.
    """

    def __init__(self, half_life_s: float, entry_penalty_s: float) -> None:
        self.half_life_s, self.entry_penalty_s = half_life_s, entry_penalty_s
        self.version = 0
        self.tenants: dict[str, int] = {}
        self.tenant_of: Ints = np.zeros(16, np.int64)
        self._number: dict[tuple[str, str], int] = {}
        self._rate: Floats = np.zeros(16)
        self._past: Floats = np.zeros(16)
        self._open: dict[str, tuple[int, float]] = {}
        self._origin: float | None = None
        self._k = half_life_s / math.log(2)

    def account(self, tenant: str, owner: str) -> int:
        number = self._number.get((tenant, owner))
        if number is None:
            number = self._number[tenant, owner] = len(self._number)
            if number >= len(self._rate):
                self._rate, self._past = (np.concatenate((old, np.zeros(len(old)))) for old in (self._rate, self._past))
                self.tenant_of = np.concatenate((self.tenant_of, np.zeros_like(self.tenant_of)))
            self.tenant_of[number] = self.tenants.setdefault(tenant, len(self.tenants))
        return number

    def begin(self, attempt_id: str, tenant: str, owner: str, share: float, at: float) -> None:
        if attempt_id in self._open:
            return
        number, weight = self.account(tenant, owner), self._weight(at)
        self._open[attempt_id] = (number, share)
        self._rate[number] += share
        self._past[number] += share * (self.entry_penalty_s - self._k) * weight
        self.version += 1

    def end(self, attempt_id: str, at: float) -> None:
        opened = self._open.pop(attempt_id, None)
        if opened is None:
            return
        (number, share), weight = opened, self._weight(at)
        self._rate[number] -= share
        self._past[number] += share * self._k * weight
        self.version += 1

    def rename(self, tenant: tuple[str, str] | None, owner: tuple[str, str] | None) -> None:
        """Add the debts of renamed tenants and owners, (before, after), to those of their new names."""
        for (of_tenant, of_owner), number in list(self._number.items()):
            renamed = _renamed(of_tenant, tenant), _renamed(of_owner, owner)
            if renamed != (of_tenant, of_owner):
                into = self.account(*renamed)
                self._past[into] += self._past[number]
                self._rate[into] += self._rate[number]
                self._past[number] = self._rate[number] = 0.0
                self._open = {key: (into if one == number else one, share) for key, (one, share) in self._open.items()}
        self.version += 1

    def debts(self, now: float) -> tuple[Floats, Floats]:
        """([accounts], [tenants]): the debts at `now`, in capacity-seconds."""
        count, weight = len(self._number), self._weight(now)
        own = self._k * self._rate[:count] + self._past[:count] / weight
        own = np.maximum(0.0, own)
        of_tenants = np.bincount(self.tenant_of[:count], weights=own, minlength=len(self.tenants))
        return own, of_tenants.astype(np.float64)

    def debt(self, tenant: str, owner: str, now: float) -> float:
        number = self._number.get((tenant, owner))
        return 0.0 if number is None else float(self.debts(now)[0][number])

    def _weight(self, at: float) -> float:
        """The weight, relative to the origin, of a capacity-second at `at`."""
        if self._origin is None:
            self._origin = at
        halves = (at - self._origin) / self.half_life_s
        if halves > MAX_HALF_LIVES:
            self._past *= 2.0**-halves
            self._origin, halves = at, 0.0
        return math.pow(2.0, max(-1000.0, halves))
