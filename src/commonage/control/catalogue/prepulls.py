"""Pulls images onto nodes before workloads need them.

Each image of the catalogue is pulled onto each schedulable node, also onto nodes that join later, unless the settings
disable this; and onto any node on request. A node pulls one image at a time. The state of the nodes is kept only since
the start: a node that has the image says so at once when asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.state.live_state import LiveState
from commonage.control.state.waiting import wait_at_most
from commonage.domain.errors import CommonageError, start_failure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus, Image, environments_of
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import AskingNode, NoEngineForSite, OnNodes
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 5.0
FIRST_PAUSE_S = 30.0  # before a node that failed to pull tries again; doubles, up to
LONGEST_PAUSE_S = 3600.0
MAX_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class OnNode:
    """Status of an image on a node. `progress` is 0..1 during the pull, if known."""

    node: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None


@dataclass(slots=True)
class _Errand:
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
        self._errands: defaultdict[str, dict[str, _Errand]] = defaultdict(dict)  # by image, then by node
        self._wished: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()
        self.iterations = Iterations("prepulls", clock.now)

    # --- status ---------------------------------------------------------------------------------------------------

    def of(self, image: Image) -> Sequence[OnNode]:
        """The nodes that have the image or are to pull it, by name."""
        found = self._errands.get(image.name, {})
        return [found[node].seen for node in sorted(found) if found[node].reference == image.reference]

    def status(self, environment: Environment) -> EnvironmentStatus | None:
        """Status of an environment's image over all nodes; None if nothing is known of it."""
        image = self._catalogue.image_of(environment.name)
        seen = self.of(image) if image is not None else ()
        if not seen:
            return None
        return _together(environment.name, seen)

    # --- requests -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The catalogue changed: check at once."""
        self._woken.set()

    def stop(self, image: Image, nodes: Collection[str]) -> None:
        """Pull an image onto these nodes now, also where that failed before."""
        for node in nodes:
            self._wished.add((image.name, node))
            errand = self._errands[image.name].get(node)
            if errand is not None and not errand.is_under_way:
                del self._errands[image.name][node]
        self.tick()

    # --- loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pull images until cancelled."""
        while True:
            self.tick()
            with self.iterations.rest():
                await wait_at_most(LOOK_AGAIN_S, self._woken, self._clock)
            self._woken.clear()

    def tick(self) -> None:
        """Start pulls of missing images on nodes that are free to pull."""
        now = self._clock.now()
        ready = {name: node for name, node in self._live_state.nodes.items() if node.state is NodeState.READY}
        images = {image.name: image for image in self._catalogue.images()}
        self._forget(images)
        busy = {node for errands in self._errands.values() for node, one in errands.items() if one.is_under_way}
        for name, image in images.items():
            for node in ready.values():
                wanted = self._everywhere or (name, node.name) in self._wished
                if len(busy) < MAX_AT_ONCE and wanted and node.name not in busy and self._is_due(image, node, now):
                    self._send(image, node)
                    busy.add(node.name)

    def _forget(self, images: Mapping[str, Image]) -> None:
        """Drop entries of removed or replaced images, and of lost nodes: these may return without the image."""
        there = {node.name for node in self._live_state.nodes.values() if node.state is not NodeState.LOST}
        for name, errands in list(self._errands.items()):
            image = images.get(name)
            for node, errand in list(errands.items()):
                if image is None or errand.reference != image.reference or node not in there:
                    if errand.task is not None:
                        errand.task.cancel()
                    del errands[node]
            if not errands:
                del self._errands[name]
        self._wished = {(name, node) for name, node in self._wished if name in images}

    def _is_due(self, image: Image, node: Node, now: float) -> bool:
        errand = self._errands[image.name].get(node.name)
        if errand is None:
            return True
        return not errand.is_under_way and errand.again_at is not None and errand.again_at <= now

    def _send(self, image: Image, node: Node) -> None:
        before = self._errands[image.name].get(node.name)
        seen = OnNode(node.name, EnvironmentState.BUILDING, AskingNode())
        errand = _Errand(image.reference, seen, tries=before.tries if before is not None else 0)
        self._errands[image.name][node.name] = errand
        errand.task = asyncio.create_task(self._bring(image, node, errand), name=f"image {image.name} to {node.name}")
        errand.task.add_done_callback(lambda _: self._woken.set())

    async def _bring(self, image: Image, node: Node, errand: _Errand) -> None:
        def told(reason: Reason, progress: float | None) -> None:
            errand.seen = replace(errand.seen, reason=reason, progress=progress)

        engine = self._engines.get(node.site)
        if engine is None:
            errand.seen = OnNode(node.name, EnvironmentState.FAILED, NoEngineForSite(site=node.site))
            return
        try:
            await engine.prepare(environments_of(image)[0], node.name, told)
        except CommonageError as error:
            errand.tries += 1
            errand.seen = OnNode(node.name, EnvironmentState.FAILED, start_failure(error))
            if error.is_retryable:
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(errand.tries - 1, 10))
                errand.again_at = self._clock.now() + pause
            log.warning("the image %s is not on %s: %s", image.name, node.name, error)
            return
        errand.seen = OnNode(node.name, EnvironmentState.READY)
        log.info("the image %s is ready on %s", image.name, node.name)

    async def close(self) -> None:
        """Stop waiting for pulls; the nodes may still finish them."""
        errands = [errand for of_image in self._errands.values() for errand in of_image.values()]
        tasks = [errand.task for errand in errands if errand.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _together(name: str, seen: Sequence[OnNode]) -> EnvironmentStatus:
    """Combine all nodes into one status: being pulled anywhere, ready, or the error."""
    in_state = {state: [one for one in seen if one.state is state] for state in EnvironmentState}
    building, ready = in_state[EnvironmentState.BUILDING], in_state[EnvironmentState.READY]
    failed = in_state[EnvironmentState.FAILED]
    where = OnNodes(ready=len(ready), nodes=len(seen))
    if building:
        one = max(building, key=lambda each: each.progress or 0.0)
        reason = replace(where, node=one.node, cause=one.reason) if len(seen) > 1 else one.reason
        return EnvironmentStatus(name, "", EnvironmentState.BUILDING, reason, one.progress)
    if failed:
        where = replace(where, node=failed[0].node, cause=failed[0].reason)
    state = EnvironmentState.READY if ready else EnvironmentState.FAILED
    return EnvironmentStatus(name, "", state, where)
