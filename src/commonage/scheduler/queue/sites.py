"""Chooses the site of a workload: a site that could start it now, else the site in whose queue it is shown.

One queue serves all sites. The pass narrows the nodes for a start with `choose`; explanations ask `queue_site`; the
snapshot reports each start. A site reserves nothing for the workloads in its queue: the first free site takes the next
request. A gang runs on one site. Candidate sites (candidates.py) are part of each request.
"""

from __future__ import annotations

import numpy as np

from commonage.domain.sites import SitePolicy
from commonage.domain.tenants import Rules
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, Floats, Ints


class Sites:
    """The sites of the nodes, in the order of the rules and then by name; and the site of each queued workload."""

    def __init__(self, grid: Grid, rules: Rules) -> None:
        self._grid = grid
        self.names: list[str] = []
        self._of: Ints = np.empty(0, np.int64)
        self._shown_at: dict[str, str] = {}
        self._last_choice: dict[str, int] = {}
        self._choices = 0
        self.set_rules(rules)

    def set_rules(self, rules: Rules) -> None:
        """Replace order, prices and policies. Sites that were chosen before stay so."""
        self._declared = [site.name for site in rules.sites]
        self._price_per_gpu_h = {site.name: site.price_per_gpu_h for site in rules.sites}
        self._policy = rules.site_policy
        self._policies = {one.name: one.site_policy for one in rules.tenants if one.site_policy is not None}
        self._epoch = -1
        self.sync()

    def sync(self) -> None:
        if self._epoch == self._grid.epoch:
            return
        present = sorted({node.site for node in self._grid.nodes})
        ordered = [name for name in self._declared if name in present]
        self.names = ordered + [name for name in present if name not in ordered]
        number = {name: index for index, name in enumerate(self.names)}
        self._of = np.array([number[node.site] for node in self._grid.nodes], np.int64)
        self._epoch = self._grid.epoch

    def policy_of(self, tenant: str) -> SitePolicy:
        return self._policies.get(tenant, self._policy)

    def choose(self, may: Bools, count: int = 1, tenant: str = "") -> Bools:
        """[N]: the nodes of the chosen site, of those in `may`; none if no site has `count`. Changes nothing."""
        self.sync()
        free = self._sites_with(may, count)
        if not len(free):
            return np.zeros(len(may), np.bool_)
        return may if len(self.names) == 1 else may & (self._of == int(free[np.argmin(self._scores(free, tenant))]))

    def at(self, name: str) -> Bools:
        """[N]: the nodes of this site."""
        self.sync()
        nodes: Bools = self._of == (self.names.index(name) if name in self.names else -1)
        return nodes

    def with_room(self, could: Bools, count: int) -> list[str]:
        """The sites with `count` nodes in `could` [N]."""
        self.sync()
        return [self.names[index] for index in self._sites_with(could, count)]

    def queue_site(
        self, workload_id: str | None, could: Bools, count: int = 1, promised: str | None = None
    ) -> str | None:
        """The site in whose queue a workload is shown: the promised one, which is free first, else the previous one,
        else the least recently chosen. With `workload_id` None it is only considered, and nothing is recorded.

        Only sites with `count` nodes in `could` [N], which could ever run it; None without such a site.
        """
        able = self.with_room(could, count)
        before = None if workload_id is None else self._shown_at.get(workload_id)
        site = promised if promised in able else before
        if site not in able:
            site = min(able, key=lambda name: self._last_choice.get(name, -1), default=None)
        if site != before and workload_id is not None:
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
        if len(self.names) == 1:
            return np.zeros(int(np.count_nonzero(nodes) >= count), np.int64)
        per_site = np.bincount(self._of[nodes], minlength=len(self.names))
        return np.flatnonzero(per_site >= count)

    def _scores(self, sites: Ints, tenant: str) -> Floats:
        """The site scores, lower is better; equal if only the order counts."""
        policy = self.policy_of(tenant)
        if policy is SitePolicy.CHEAPEST:
            return np.array([self._price_per_gpu_h.get(self.names[site], np.inf) for site in sites])
        if policy is SitePolicy.LEAST_USED and len(sites) > 1:
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
