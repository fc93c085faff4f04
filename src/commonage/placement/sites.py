"""Which site a workload goes to, where there are several: one that could start it now, else the queue of one.

There is one queue for all sites. To route is to choose the site among whose machines a workload is placed, and as long
as it waits, the site at whose queue it is shown to stand. The pass narrows the nodes on which an ask may start now by
`choose`; explanations ask `stands`; the snapshot tells of what was `started`. Nothing is kept at a site for who stands
there: the first that is free takes whoever is next. A gang is at one site.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from commonage.domain.tenants import Rules
from commonage.placement.grid import Grid
from commonage.placement.shapes import Bools, Floats, Ints


class SitePolicy(StrEnum):
    """Which of several sites that could start it now: the first in the order of the rules, the one of which least is
    used, or the one where a GPU costs least."""

    FIRST_FREE = "first-free"
    LEAST_USED = "least-used"
    CHEAPEST = "cheapest"


class Sites:
    """The sites of the grid's nodes, in the order of the rules and then by name, and who stands where."""

    def __init__(self, grid: Grid, rules: Rules) -> None:
        self._grid, self._rules = grid, rules
        self.names: list[str] = []
        self._of: Ints = np.empty(0, np.int64)
        self._standing: dict[str, str] = {}
        self._turn: dict[str, int] = {}
        self._turns = 0
        self._epoch = -1
        self.sync()

    def sync(self) -> None:
        """Follow the grid where nodes came or went."""
        if self._epoch == self._grid.epoch:
            return
        there = sorted({node.site for node in self._grid.nodes})
        ordered = [name for name, _ in self._rules.sites if name in there]
        self.names = ordered + [name for name in there if name not in ordered]
        number = {name: index for index, name in enumerate(self.names)}
        self._of = np.array([number[node.site] for node in self._grid.nodes], np.int64)
        self._epoch = self._grid.epoch

    def choose(self, may: Bools, count: int = 1) -> Bools:
        """[N]: of the nodes on which something may start now those of the site that takes it, where there are enough
        for `count` of it; none if no site has so many. Changes nothing."""
        self.sync()
        free = self._sites_with(may, count)
        if not len(free):
            return np.zeros(len(may), np.bool_)
        return may if len(self.names) == 1 else may & (self._of == int(free[np.argmin(self._prices(free))]))

    def stands(self, workload_id: str, could: Bools, count: int = 1) -> str | None:
        """The site at which a workload stands that waits: of those that could ever run it (nodes [N]) the one where it
        stood before, or to which longest nobody was sent; None if there is none."""
        self.sync()
        able = [self.names[index] for index in self._sites_with(could, count)]
        site = self._standing.get(workload_id)
        if site not in able:
            site = min(able, key=lambda name: self._turn.get(name, -1), default=None)
            self._standing.pop(workload_id, None)
            if site is not None:
                self._standing[workload_id] = site
                self.started(site)
        return site

    def forget(self, workload_id: str) -> None:
        """It waits no longer."""
        self._standing.pop(workload_id, None)

    def started(self, site: str) -> None:
        """Something was started at a site."""
        self._turns += 1
        self._turn[site] = self._turns

    def _sites_with(self, nodes: Bools, count: int) -> Ints:
        """The sites that have so many of these nodes, in order."""
        per_site = np.bincount(self._of[nodes], minlength=len(self.names))
        return np.flatnonzero(per_site >= count)

    def _prices(self, sites: Ints) -> Floats:
        """What the policy goes by, lower is better; equal for all where it is the order alone."""
        policy = self._rules.site_policy
        if policy == SitePolicy.CHEAPEST:
            price = dict(self._rules.sites)
            return np.array([price.get(self.names[site], np.inf) for site in sites])
        if policy == SitePolicy.LEAST_USED and len(sites) > 1:
            return self._used()[sites]
        return np.zeros(len(sites))

    def _used(self) -> Floats:
        """[sites]: the part of its GPUs that is held, or of its cpus where it has no GPUs."""
        grid, sites = self._grid, len(self.names)
        cards = grid.kind >= 0
        gpus = np.bincount(self._of, np.count_nonzero(cards, axis=1) * 1000.0, sites)
        idle = np.bincount(self._of, np.where(cards, grid.free_milli, 0).sum(axis=1), sites)
        cpus = np.bincount(self._of, grid.cpus_total, sites)
        free = np.bincount(self._of, grid.cpus, sites)
        has = gpus > 0
        whole = np.where(has, gpus, np.maximum(1, cpus))
        used: Floats = 1.0 - np.where(has, idle, free) / whole
        return used
