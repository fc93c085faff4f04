"""Images on their way to the machines, before anybody waits for them.

Each image of the catalogue is brought to each machine that takes work, also to one that joins later, unless the
settings say no; and wherever somebody asks for it. A machine fetches one at a time. What is known here of machines is
what was seen since the start: a machine that has the image already says so at once when it is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.control.board import Board
from commonage.control.catalogue import Catalogue
from commonage.control.waiting import wait_at_most
from commonage.domain.environments import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.errors import CommonageError, start_failure
from commonage.domain.fleet import Node, NodeState
from commonage.domain.images import Image, environments_of
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import AskingNode, NoEngineForSite, OnNodes
from commonage.domain.turns import Turns
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 5.0
FIRST_PAUSE_S = 30.0  # before a machine that could not fetch tries again; doubles, up to
LONGEST_PAUSE_S = 3600.0
MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class OnNode:
    """Where an image stands on a machine. `progress` is 0..1 while it is fetched, as far as it is known."""

    node: str
    state: EnvironmentState
    reason: Reason | None = None
    progress: float | None = None


@dataclass(slots=True)
class _Errand:
    """One image on one machine. `again_at`: when it is tried again (None: only if somebody asks)."""

    reference: str
    seen: OnNode
    task: asyncio.Task[None] | None = None
    again_at: float | None = None
    tries: int = 0

    @property
    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()


class Prepulls:
    """`everywhere`: all images are brought to all machines."""

    def __init__(
        self, engines: Mapping[str, Engine], board: Board, catalogue: Catalogue, clock: Clock, *, everywhere: bool
    ) -> None:
        self._engines, self._board, self._catalogue, self._clock = engines, board, catalogue, clock
        self._everywhere = everywhere
        self._errands: defaultdict[str, dict[str, _Errand]] = defaultdict(dict)  # by image, then by machine
        self._wished: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()
        self.turns = Turns("prepulls", clock.now)

    # --- what is known --------------------------------------------------------------------------------------------

    def of(self, image: Image) -> Sequence[OnNode]:
        """The machines it was brought to or is on its way to, by name."""
        found = self._errands.get(image.name, {})
        return [found[node].seen for node in sorted(found) if found[node].reference == image.reference]

    def status(self, environment: Environment) -> EnvironmentStatus | None:
        """Where the image of an environment stands on all machines together; None if nothing is known of it."""
        image = self._catalogue.image_of(environment.name)
        seen = self.of(image) if image is not None else ()
        if not seen:
            return None
        return _together(environment.name, seen)

    # --- wishes ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The catalogue changed: look at once."""
        self._woken.set()

    def wish(self, image: Image, nodes: Collection[str]) -> None:
        """Bring an image to these machines now, also where that failed before."""
        for node in nodes:
            self._wished.add((image.name, node))
            errand = self._errands[image.name].get(node)
            if errand is not None and not errand.is_under_way:
                del self._errands[image.name][node]
        self.tick()

    # --- loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.tick()
            with self.turns.rest():
                await wait_at_most(LOOK_AGAIN_S, self._woken, self._clock)
            self._woken.clear()

    def tick(self) -> None:
        """Send for what is missing, as far as machines are free to fetch."""
        now = self._clock.now()
        ready = {name: node for name, node in self._board.nodes.items() if node.state is NodeState.READY}
        images = {image.name: image for image in self._catalogue.images()}
        self._forget(images)
        busy = {node for errands in self._errands.values() for node, one in errands.items() if one.is_under_way}
        for name, image in images.items():
            for node in ready.values():
                wanted = self._everywhere or (name, node.name) in self._wished
                if len(busy) < MOST_AT_ONCE and wanted and node.name not in busy and self._is_due(image, node, now):
                    self._send(image, node)
                    busy.add(node.name)

    def _forget(self, images: Mapping[str, Image]) -> None:
        """What concerns images that were removed or replaced, and machines that are gone: they may come back bare."""
        there = {node.name for node in self._board.nodes.values() if node.state is not NodeState.LOST}
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
        """Wait no more for what is under way; the machines may finish it."""
        errands = [errand for of_image in self._errands.values() for errand in of_image.values()]
        tasks = [errand.task for errand in errands if errand.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _together(name: str, seen: Sequence[OnNode]) -> EnvironmentStatus:
    """One word for all machines: being fetched anywhere, ready, or why not."""
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
