"""What everybody used of the fleet, so that whoever used little comes first: usage that fades, in fleet-seconds.

The board tells it of each lease that begins and ends; the queue reads the debts of all accounts at once. An account is
one user within one tenant. What a lease takes of the fleet is its dominant share: the largest of its parts of all cpus,
all memory and all GPUs (dominant resource fairness, Ghodsi et al. 2011). A fleet-second is all of it for a second.

A debt fades by half in each half-life. While a lease is held it grows by its share every second; at the start it grows
at once by the share times the entry penalty, so that a hundred short jobs are not free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commonage.domain.tenants import Amounts
from commonage.placement.grid import Grid
from commonage.placement.shapes import Floats, Ints

MOST_HALF_LIVES = 60.0  # after so many the origin is moved, so that no number grows too large


@dataclass(frozen=True, slots=True)
class Capacity:
    """All that the fleet has, at least 1 of each."""

    cpus_milli: int = 1
    memory_mib: int = 1
    gpu_milli: int = 1

    @classmethod
    def of(cls, grid: Grid) -> Capacity:
        """Of all machines that are known, ready or not: who waits for one that is drained is not in the right."""
        cards = 1000 * int(np.count_nonzero(grid.total_mib))
        return cls(max(1, int(grid.cpus_total.sum())), max(1, int(grid.memory_total.sum())), max(1, cards))

    def share(self, amounts: Amounts) -> float:
        """The dominant share of what a lease or request takes."""
        parts = (
            amounts.cpus_milli / self.cpus_milli,
            amounts.memory_mib / self.memory_mib,
            amounts.gpu_milli / self.gpu_milli,
        )
        return min(1.0, max(parts))  # more is held where machines went away


class Usage:
    """The debts of all accounts. Numbers of accounts and tenants are given in order of appearance and stay.

    Of each account only two numbers are kept, whatever it ran: `rate`, the shares it holds now, and `past`, what its
    begins and ends come to at the origin of time. For a lease held from a to b owes share * K * (2^-((t-b)/H) -
    2^-((t-a)/H)) at t, with K = H / ln 2: a sum in which every begin and every end stands by itself.
    """

    def __init__(self, half_life_s: float, entry_penalty_s: float) -> None:
        self.half_life_s, self.entry_penalty_s = half_life_s, entry_penalty_s
        self.version = 0
        self.names: list[tuple[str, str]] = []
        self.tenants: list[str] = []
        self.tenant_of: Ints = np.zeros(16, np.int64)
        self._number: dict[tuple[str, str], int] = {}
        self._tenant_number: dict[str, int] = {}
        self._rate: Floats = np.zeros(16)
        self._past: Floats = np.zeros(16)
        self._open: dict[str, tuple[int, float]] = {}
        self._origin: float | None = None
        self._k = half_life_s / math.log(2)

    def account(self, tenant: str, owner: str) -> int:
        """The number of a user's account within a tenant."""
        number = self._number.get((tenant, owner))
        if number is None:
            number = self._number[tenant, owner] = len(self.names)
            self.names.append((tenant, owner))
            if tenant not in self._tenant_number:
                self._tenant_number[tenant] = len(self.tenants)
                self.tenants.append(tenant)
            if number >= len(self._rate):
                self._rate, self._past = (np.concatenate((old, np.zeros(len(old)))) for old in (self._rate, self._past))
                self.tenant_of = np.concatenate((self.tenant_of, np.zeros_like(self.tenant_of)))
            self.tenant_of[number] = self._tenant_number[tenant]
        return number

    def begin(self, attempt_id: str, tenant: str, owner: str, share: float, at: float) -> None:
        """A lease is held from `at` on. Telling it again changes nothing."""
        if attempt_id in self._open:
            return
        number, weight = self.account(tenant, owner), self._weight(at)
        self._open[attempt_id] = (number, share)
        self._rate[number] += share
        self._past[number] += share * (self.entry_penalty_s - self._k) * weight
        self.version += 1

    def end(self, attempt_id: str, at: float) -> None:
        """It was held until `at`."""
        opened = self._open.pop(attempt_id, None)
        if opened is None:
            return
        (number, share), weight = opened, self._weight(at)
        self._rate[number] -= share
        self._past[number] += share * self._k * weight
        self.version += 1

    def charge(self, attempt_id: str, tenant: str, owner: str, share: float, held: tuple[float, float]) -> None:
        """A lease that was held from when until when, as the store remembers it."""
        self.begin(attempt_id, tenant, owner, share, held[0])
        self.end(attempt_id, held[1])

    def debts(self, now: float) -> tuple[Floats, Floats]:
        """([accounts], [tenants]): what each owes at `now`, in fleet-seconds."""
        count, weight = len(self.names), self._weight(now)
        own = self._k * self._rate[:count] + self._past[:count] / weight
        own = np.maximum(0.0, own)
        of_tenants = np.bincount(self.tenant_of[:count], weights=own, minlength=len(self.tenants))
        return own, of_tenants.astype(np.float64)

    def debt(self, tenant: str, owner: str, now: float) -> float:
        """What one user owes at `now`, in fleet-seconds."""
        number = self._number.get((tenant, owner))
        return 0.0 if number is None else float(self.debts(now)[0][number])

    def _weight(self, at: float) -> float:
        """What a fleet-second at `at` counts at the origin: more, the later it is."""
        if self._origin is None:
            self._origin = at
        halves = (at - self._origin) / self.half_life_s
        if halves > MOST_HALF_LIVES:
            self._past *= 2.0**-halves
            self._origin, halves = at, 0.0
        return math.pow(2.0, max(-1000.0, halves))
