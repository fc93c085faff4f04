"""Chooses the site of a workload: one that could start it now, else the one in whose queue it is shown.

One queue serves all sites. Routing chooses the site among whose nodes a workload is placed and, while it waits, the
site in whose queue it is shown. The pass narrows the nodes for a start by `choose`; explanations ask `stands`; the
snapshot reports what was `started`. A site keeps nothing for the workloads shown in its queue: the first free site
takes the next request. A gang runs on one site.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from commonage.domain.tenants import Rules
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, Floats, Ints


class SitePolicy(StrEnum):
    """The choice among sites that could start it now: the first in the order of the rules, the least used one, or the
    one with the lowest GPU price.
    """

    FIRST_FREE = "first-free"
    LEAST_USED = "least-used"
    CHEAPEST = "cheapest"


class Sites:
    """The sites of the grid's nodes, by the order of the rules and then by name, and that of each waiting workload."""

    def __init__(self, grid: Grid, rules: Rules) -> None:
        self._grid, self._rules = grid, rules
        self.names: list[str] = []
        self._of: Ints = np.empty(0, np.int64)
        self._standing: dict[str, str] = {}
        self._turn: dict[str, int] = {}
        self._equivalence_classes = 0
        self._epoch = -1
        self.sync()

    def sync(self) -> None:
        """Update after nodes came or left."""
        if self._epoch == self._grid.epoch:
            return
        there = sorted({node.site for node in self._grid.nodes})
        ordered = [name for name, _ in self._rules.sites if name in there]
        self.names = ordered + [name for name in there if name not in ordered]
        number = {name: index for index, name in enumerate(self.names)}
        self._of = np.array([number[node.site] for node in self._grid.nodes], np.int64)
        self._epoch = self._grid.epoch

    def choose(self, may: Bools, count: int = 1) -> Bools:
        """[N]: of the nodes on which it may start now, those of the chosen site, which must have at least `count`; none
        if no site has enough. Changes nothing.
        """
        self.sync()
        free = self._sites_with(may, count)
        if not len(free):
            return np.zeros(len(may), np.bool_)
        return may if len(self.names) == 1 else may & (self._of == int(free[np.argmin(self._prices(free))]))

    def stands(self, workload_id: str, could: Bools, count: int = 1) -> str | None:
        """The site in whose queue a waiting workload is shown: of those that could ever run it (nodes [N]) the one
        where it was before, or the one least recently chosen; None if no site could.
        """
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
        """Forget a workload that no longer waits."""
        self._standing.pop(workload_id, None)

    def started(self, site: str) -> None:
        """Note a start on a site."""
        self._equivalence_classes += 1
        self._turn[site] = self._equivalence_classes

    def _sites_with(self, nodes: Bools, count: int) -> Ints:
        """The sites with at least `count` of these nodes, in order."""
        per_site = np.bincount(self._of[nodes], minlength=len(self.names))
        return np.flatnonzero(per_site >= count)

    def _prices(self, sites: Ints) -> Floats:
        """The values that the policy compares, lower is better; equal for all if only the order counts."""
        policy = self._rules.site_policy
        if policy == SitePolicy.CHEAPEST:
            price = dict(self._rules.sites)
            return np.array([price.get(self.names[site], np.inf) for site in sites])
        if policy == SitePolicy.LEAST_USED and len(sites) > 1:
            return self._used()[sites]
        return np.zeros(len(sites))

    def _used(self) -> Floats:
        """[sites]: the held part of its GPUs, or of its CPUs if it has no GPUs."""
        grid, sites = self._grid, len(self.names)
        devices = grid.kind >= 0
        gpus = np.bincount(self._of, np.count_nonzero(devices, axis=1) * 1000.0, sites)
        idle = np.bincount(self._of, np.where(devices, grid.free_milli, 0).sum(axis=1), sites)
        cpus = np.bincount(self._of, grid.cpus_total, sites)
        free = np.bincount(self._of, grid.cpus, sites)
        has = gpus > 0
        whole = np.where(has, gpus, np.maximum(1, cpus))
        used: Floats = 1.0 - np.where(has, idle, free) / whole
        return used
