"""Random fleets and queues, and a world in which everything uses up its time limit, for the tests of the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from commonage.domain.fleet import Node, NodeState
from commonage.domain.ids import attempt_id
from commonage.domain.requests import GpuRequest, Request
from commonage.placement.plan import Plan, plan
from commonage.placement.rooms import Room, rooms_of
from commonage.placement.snapshot import Ask, Held, Snapshot
from commonage.testing import factories

NOW = 1000.0
GIB = 1024

CARDS = st.builds(
    lambda memory, model, faulty: (memory * GIB, model, ("it is hot",) if faulty else ()),
    st.sampled_from([16, 24, 80]),
    st.sampled_from(["A30", "A100"]),
    st.sampled_from([False, False, False, True]),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Node]:
    nodes = []
    for number in range(draw(st.integers(1, 4))):
        name = f"node-{number}"
        cards = [
            factories.device(index, uuid=f"{name}-{index}", memory_mib=memory, model=model, faults=faults)
            for index, (memory, model, faults) in enumerate(draw(st.lists(CARDS, max_size=3)))
        ]
        state = draw(st.sampled_from([NodeState.READY] * 5 + [NodeState.DRAINING, NodeState.LOST]))
        cpus, memory = draw(st.integers(1, 16)), draw(st.integers(1, 64))
        nodes.append(factories.node(name, cards, cpus_milli=cpus * 1000, memory_mib=memory * GIB, state=state))
    return nodes


GPUS = st.none() | st.one_of(
    st.builds(GpuRequest, whole=st.integers(1, 3), model=st.sampled_from([None, None, "A100"])),
    st.builds(GpuRequest, fraction_milli=st.sampled_from([100, 250, 333, 500, 750])),
    st.builds(GpuRequest, vram_mib=st.integers(1, 24).map(lambda gib: gib * GIB), model=st.sampled_from([None, "A30"])),
)
REQUESTS = st.builds(Request, st.integers(1, 8).map(lambda n: n * 500), st.integers(1, 16).map(lambda n: n * GIB), GPUS)


def shape_of(request: Request, shapes: dict[Request, int]) -> int:
    return shapes.setdefault(request, len(shapes))


@st.composite
def queues(draw: st.DrawFn, most: int = 12) -> list[Ask]:
    shapes: dict[Request, int] = {}
    few = draw(st.lists(REQUESTS, min_size=1, max_size=4))
    asks = []
    for number in range(draw(st.integers(1, most))):
        request = draw(st.sampled_from(few))
        name = f"w{number:012}"
        asks.append(
            Ask(
                name,
                attempt_id(name, 1),
                request,
                shape_of(request, shapes),
                draw(st.sampled_from([0, 0, 0, 5])),
                NOW - 100 + draw(st.integers(0, 50)),
                draw(st.sampled_from([None, 10, 60, 100])),
            )
        )
    return sorted(asks, key=lambda ask: ask.order)


def _old(held: Held) -> Held:
    lease = replace(held.lease, attempt_id="h" + held.lease.attempt_id[1:])
    return Held(lease, "h" + held.workload_id[1:], "old", "ann", "job", held.ends_at)


@st.composite
def snapshots(draw: st.DrawFn, most: int = 12) -> Snapshot:
    """A fleet on which something runs already (placed by the planner itself), and a queue."""
    nodes = draw(fleets())
    running = plan(Snapshot(NOW - 50, nodes, [], draw(queues(6))))
    held = [_old(one) for one in running.held if one.ends_at is None or one.ends_at > NOW]
    return Snapshot(NOW, nodes, held, draw(queues(most)))


def after(snapshot: Snapshot, outcome: Plan) -> Snapshot:
    """The world once a plan is carried out."""
    started = {workload_id for workload_id, _ in outcome.starts}
    return replace(snapshot, held=outcome.held, queue=[ask for ask in snapshot.queue if ask.workload_id not in started])


def later(snapshot: Snapshot, now: float) -> Snapshot:
    """The world at `now`: what had a time limit has used it up."""
    return replace(snapshot, now=now, held=[one for one in snapshot.held if one.ends_at is None or one.ends_at > now])


def play(snapshot: Snapshot) -> dict[str, float]:
    """When each starts, if everything uses up its time limit and nobody new comes."""
    starts: dict[str, float] = {}
    while True:
        outcome = plan(snapshot)
        starts |= {workload_id: snapshot.now for workload_id, _ in outcome.starts}
        snapshot = after(snapshot, outcome)
        ends = [one.ends_at for one in snapshot.held if one.ends_at is not None]
        if not ends:
            return starts
        snapshot = later(snapshot, max(snapshot.now, min(ends)))


def rooms(snapshot: Snapshot, held: Sequence[Held]) -> dict[str, Room]:
    return rooms_of(snapshot.nodes, (one.lease for one in held))
