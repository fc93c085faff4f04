"""Pulls images onto nodes before workloads need them.

Each image of the catalogue is pulled onto each schedulable node, also onto nodes that join later, unless the settings
disable this; and onto any node on request. A node pulls one image at a time. The state of the nodes is kept only since
the start: a node that has the image says so at once when asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.signals import cancel_all, wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.domain.errors import CommonageError, start_failure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus, Image, environments_of
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Node, NodeKey, NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import AskingNode, NoEngineForSite, OnNodes
from commonage.domain.sites import EVERYWHERE
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 5.0
FIRST_PAUSE_S = 30.0  # before a node that failed to pull tries again; doubles, up to
LONGEST_PAUSE_S = 3600.0
MAX_AT_ONCE = 16  # pulls at one site


@dataclass(frozen=True, slots=True)
class OnNode:
    """Status of an image on a node. `progress` is 0..1 during the pull, if known."""

    site: str
    node: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None

    @property
    def label(self) -> str:
        return NodeKey(self.site, self.node).label


@dataclass(slots=True)
class _Pull:
    """One image on one node. `again_at`: time of the next try (None: only on request)."""

    reference: str
    seen: OnNode
    task: asyncio.Task[None] | None = None
    again_at: float | None = None
    tries: int = 0

    @property
    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()


class Prepulls:
    """`everywhere`: all images are pulled onto all nodes."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        live_state: LiveState,
        catalogue: Catalogue,
        clock: Clock,
        *,
        everywhere: bool,
    ) -> None:
        self._engines, self._live_state, self._catalogue, self._clock = engines, live_state, catalogue, clock
        self._everywhere = everywhere
        self._pulls: defaultdict[str, dict[NodeKey, _Pull]] = defaultdict(dict)  # by image, then by node
        self._requested: set[tuple[str, NodeKey]] = set()
        self._woken = asyncio.Event()
        self.iterations = Iterations("prepulls", clock.now)

    def of(self, image: Image) -> Sequence[OnNode]:
        """The nodes that have the image or are to pull it, by name."""
        found = self._pulls.get(image.name, {})
        return [found[node].seen for node in sorted(found) if found[node].reference == image.reference]

    def status(self, environment: Environment) -> EnvironmentStatus | None:
        image = self._catalogue.image_of(environment.name)
        seen = self.of(image) if image is not None else ()
        if not seen:
            return None
        return _combined_status(environment.name, seen)

    def wake(self) -> None:
        self._woken.set()

    def request(self, image: Image, nodes: Collection[NodeKey]) -> None:
        """Pull an image onto these nodes now, also where that failed before."""
        for node in nodes:
            self._requested.add((image.name, node))
            pull = self._pulls[image.name].get(node)
            if pull is not None and not pull.is_under_way:
                del self._pulls[image.name][node]
        self.tick()

    async def run(self) -> None:
        while True:
            self.tick()
            with self.iterations.rest():
                await wait_at_most(LOOK_AGAIN_S, self._woken, self._clock)
            self._woken.clear()

    def tick(self) -> None:
        now = self._clock.now()
        ready = {name: node for name, node in self._live_state.nodes.items() if node.state is NodeState.READY}
        images = {image.name: image for image in self._catalogue.images()}
        self._forget(images)
        busy = {node for pulls in self._pulls.values() for node, pull in pulls.items() if pull.is_under_way}
        at_site = Counter(key.site for key in busy)
        for name, image in images.items():
            sites = EVERYWHERE if image.tenant is None else self._live_state.snapshot.rules.sites_of(image.tenant)
            for node in ready.values():
                wanted = (self._everywhere and node.site in sites) or (name, node.key) in self._requested
                can = at_site[node.site] < MAX_AT_ONCE and node.key not in busy
                if wanted and can and self._is_due(image, node, now):
                    self._start_pull(image, node)
                    busy.add(node.key)
                    at_site[node.site] += 1

    def _forget(self, images: Mapping[str, Image]) -> None:
        """Drop entries of removed or replaced images, and of lost nodes: these may return without the image."""
        there = {node.key for node in self._live_state.nodes.values() if node.state is not NodeState.LOST}
        for name, pulls in list(self._pulls.items()):
            image = images.get(name)
            for node, pull in list(pulls.items()):
                if image is None or pull.reference != image.reference or node not in there:
                    if pull.task is not None:
                        pull.task.cancel()
                    del pulls[node]
            if not pulls:
                del self._pulls[name]
        self._requested = {(name, node) for name, node in self._requested if name in images}

    def _is_due(self, image: Image, node: Node, now: float) -> bool:
        pull = self._pulls[image.name].get(node.key)
        if pull is None:
            return True
        return not pull.is_under_way and pull.again_at is not None and pull.again_at <= now

    def _start_pull(self, image: Image, node: Node) -> None:
        before = self._pulls[image.name].get(node.key)
        seen = OnNode(node.site, node.name, EnvironmentState.BUILDING, AskingNode())
        pull = _Pull(image.reference, seen, tries=before.tries if before is not None else 0)
        self._pulls[image.name][node.key] = pull
        pull.task = asyncio.create_task(self._pull_onto(image, node, pull), name=f"image {image.name} to {node.key}")
        pull.task.add_done_callback(lambda _: self._woken.set())

    async def _pull_onto(self, image: Image, node: Node, pull: _Pull) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            pull.seen = replace(pull.seen, reason=reason, progress=progress)

        engine = self._engines.get(node.site)
        if engine is None:
            pull.seen = OnNode(node.site, node.name, EnvironmentState.FAILED, NoEngineForSite(site=node.site))
            return
        try:
            await engine.prepare(environments_of(image)[0], node.name, on_progress)
        except CommonageError as error:
            pull.tries += 1
            pull.seen = OnNode(node.site, node.name, EnvironmentState.FAILED, start_failure(error))
            if error.is_retryable:
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(pull.tries - 1, 10))
                pull.again_at = self._clock.now() + pause
            log.warning("the image %s is not on %s: %s", image.name, node.key, error)
            return
        pull.seen = OnNode(node.site, node.name, EnvironmentState.READY)
        log.info("the image %s is ready on %s", image.name, node.key)

    async def close(self) -> None:
        """Stop waiting for pulls; the nodes may still finish them."""
        pulls = [pull for of_image in self._pulls.values() for pull in of_image.values()]
        await cancel_all([pull.task for pull in pulls if pull.task is not None])


def _combined_status(name: str, seen: Sequence[OnNode]) -> EnvironmentStatus:
    in_state = {state: [one for one in seen if one.state is state] for state in EnvironmentState}
    building, ready = in_state[EnvironmentState.BUILDING], in_state[EnvironmentState.READY]
    failed = in_state[EnvironmentState.FAILED]
    where = OnNodes(ready=len(ready), nodes=len(seen))
    if building:
        one = max(building, key=lambda each: each.progress or 0.0)
        reason = replace(where, node=one.label, cause=one.reason) if len(seen) > 1 else one.reason
        return EnvironmentStatus(name, "", EnvironmentState.BUILDING, reason, one.progress)
    if failed:
        where = replace(where, node=failed[0].label, cause=failed[0].reason)
    state = EnvironmentState.READY if ready else EnvironmentState.FAILED
    return EnvironmentStatus(name, "", state, where)
