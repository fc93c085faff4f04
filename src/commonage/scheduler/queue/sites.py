"""Chooses the site of a workload: a site that could start it now, else the site in whose queue it is shown.

One queue serves all sites. The pass narrows the nodes for a start with `choose`; explanations ask `queue_site`; the
snapshot reports each start. A site reserves nothing for the workloads in its queue: the first free site takes the next
request. A gang runs on one site.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from commonage.domain.tenants import Rules
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, Floats, Ints


class SitePolicy(StrEnum):
    """Selects the site if several could start a workload: in the order of the rules, by use, or by GPU price."""

    FIRST_FREE = "first-free"
    MIN_USED = "least-used"
    CHEAPEST = "cheapest"


class Sites:
    """The sites of the nodes, in the order of the rules and then by name; and the site of each queued workload."""

    def __init__(self, grid: Grid, rules: Rules) -> None:
        self._grid, self._rules = grid, rules
        self.names: list[str] = []
        self._of: Ints = np.empty(0, np.int64)
        self._shown_at: dict[str, str] = {}
        self._last_choice: dict[str, int] = {}
        self._choices = 0
        self._epoch = -1
        self.sync()

    def sync(self) -> None:
        if self._epoch == self._grid.epoch:
            return
        present = sorted({node.site for node in self._grid.nodes})
        ordered = [name for name, _ in self._rules.sites if name in present]
        self.names = ordered + [name for name in present if name not in ordered]
        number = {name: index for index, name in enumerate(self.names)}
        self._of = np.array([number[node.site] for node in self._grid.nodes], np.int64)
        self._epoch = self._grid.epoch

    def choose(self, may: Bools, count: int = 1) -> Bools:
        """[N]: the nodes of the chosen site, of those in `may`; none if no site has `count`. Changes nothing."""
        self.sync()
        free = self._sites_with(may, count)
        if not len(free):
            return np.zeros(len(may), np.bool_)
        return may if len(self.names) == 1 else may & (self._of == int(free[np.argmin(self._prices(free))]))

    def queue_site(self, workload_id: str, could: Bools, count: int = 1) -> str | None:
        """The site in whose queue a workload is shown: the previous one, else the least recently chosen.

        Only sites with `count` nodes in `could` [N], which could ever run it; None without such a site.
        """
        self.sync()
        able = [self.names[index] for index in self._sites_with(could, count)]
        site = self._shown_at.get(workload_id)
        if site not in able:
            site = min(able, key=lambda name: self._last_choice.get(name, -1), default=None)
            self._shown_at.pop(workload_id, None)
            if site is not None:
                self._shown_at[workload_id] = site
                self.started(site)
        return site

    def forget(self, workload_id: str) -> None:
        self._shown_at.pop(workload_id, None)

    def started(self, site: str) -> None:
        self._choices += 1
        self._last_choice[site] = self._choices

    def _sites_with(self, nodes: Bools, count: int) -> Ints:
        per_site = np.bincount(self._of[nodes], minlength=len(self.names))
        return np.flatnonzero(per_site >= count)

    def _prices(self, sites: Ints) -> Floats:
        """The site scores, lower is better; equal if only the order counts."""
        policy = self._rules.site_policy
        if policy == SitePolicy.CHEAPEST:
            price = dict(self._rules.sites)
            return np.array([price.get(self.names[site], np.inf) for site in sites])
        if policy == SitePolicy.MIN_USED and len(sites) > 1:
            return self._used()[sites]
        return np.zeros(len(sites))

    def _used(self) -> Floats:
        """[sites]: the allocated part of the GPUs, or of the CPUs at a site without GPUs."""
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
