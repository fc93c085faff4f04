from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.placement.fleets import GIB, NOW, REQUESTS, Scene, fleets, play, scenes
from tests.unit.placement.test_plan import ask, held

from commonage.domain.fleet import Node, NodeState
from commonage.domain.requests import Request, parse_gpus
from commonage.placement.asks import Ask
from commonage.placement.explain import ever_fits, ordinal, why_waiting
from commonage.placement.grid import Grid
from commonage.placement.plan import plan
from commonage.testing import factories

SLOWLY = settings(max_examples=50, deadline=None)


@SLOWLY
@given(scenes())
def test_it_says_that_it_starts_if_and_only_if_it_does(scene: Scene) -> None:
    started = {workload_id for workload_id, _ in scene.plan().starts}
    for position, one in enumerate(scene.queue, 1):
        told = scene.explain(one)
        assert told.startable_now == (one.workload_id in started)
        assert (told.position, told.queue_length) == (position, len(scene.queue))
        assert told.startable_now or told.lacks


@SLOWLY
@given(scenes(8))
def test_it_expects_the_start_that_comes(scene: Scene) -> None:
    starts = play(scene)
    for one in scene.queue:
        assert scene.explain(one).expected_start_at == starts.get(one.workload_id)


@SLOWLY
@given(scenes(8), st.data())
def test_what_fits_now_starts_when_it_is_asked_instead(scene: Scene, data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(list(scene.queue)))
    told = scene.explain(one)
    if told.fits_now_gpus is None:
        return
    assert told.fits_now is not None
    request = replace(one.request, gpu=parse_gpus(told.fits_now_gpus))
    assert request != one.request
    smaller = replace(one, workload_id="z-new", attempt_id="z-new-1", request=request, submitted_at=NOW)
    others = [other for other in scene.queue if other is not one]
    assert "z-new" in replace(scene, queue=[*others, smaller]).plan().started


@SLOWLY
@given(scenes(6), REQUESTS)
def test_considering_an_ask_says_what_becomes_of_it(scene: Scene, request_: Request) -> None:
    considered = Ask("", "-1", request_, 0, NOW, None)
    told = scene.explain(considered)
    real = replace(considered, workload_id="z-new", attempt_id="z-new-1")
    queue = [*scene.queue, real]
    started = {workload_id for workload_id, _ in replace(scene, queue=queue).plan().starts}
    assert told.startable_now == ("z-new" in started)
    assert told.queue_length == len(scene.queue) + 1


@SLOWLY
@given(scenes())
def test_the_words_of_a_list_agree_with_the_explanation(scene: Scene) -> None:
    snapshot = scene.snapshot()
    outcome = plan(snapshot, NOW)
    started = outcome.started
    for position, one in enumerate(scene.queue, 1):
        if one.workload_id not in started:
            told = scene.explain(one)
            assert why_waiting(snapshot, outcome, one, position) == f"{ordinal(position)} in the queue; {told.lacks[0]}"
            assert told.summary.startswith(f"{ordinal(position)} in the queue; {told.lacks[0]}")


@SLOWLY
@given(fleets(), REQUESTS)
def test_never_means_never(nodes: list[Node], request_: Request) -> None:
    why = ever_fits(Grid(nodes), request_)
    known = [replace(node, state=NodeState.READY) for node in nodes if node.state is not NodeState.LOST]
    grid = Grid(known)
    possible = not known or bool(grid.fits(grid.shape(request_), np.arange(len(known))).any())
    assert (why is None) == possible


def test_the_bob_who_waits_for_alice() -> None:
    node = factories.node("gpu-1", 1)
    session = replace(held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}), name="session", owner="alice", kind="session")
    bob = ask(1, "12GiB")
    told = Scene(NOW, [node], [session], [bob]).explain(bob)
    assert told.lacks == ("it asks for 12 GiB of VRAM, and 8 GiB of 24 GiB are free on card 0 of gpu-1",)
    assert (told.fits_now, told.fits_now_gpus) == ("8 GiB of VRAM", "8192MiB")
    assert [(one.owner, one.kind, one.name, one.holds) for one in told.holders] == [
        ("alice", "session", "session", "16 GiB of VRAM")
    ]
    assert told.expected_start_at is None
    assert told.basis == "nobody can say when: a session of alice has no time limit"
    assert told.summary == (
        "first in the queue; it asks for 12 GiB of VRAM, and 8 GiB of 24 GiB are free on card 0 of gpu-1; "
        "a session of alice holds 16 GiB of VRAM"
    )


def test_who_runs_on_a_machine_with_a_fault_keeps_nobody_waiting() -> None:
    node = replace(factories.node("gpu-1", 1), state=NodeState.FAULTY, reason="its daemon does not answer")
    told = Scene(NOW, [node], [held(0, "gpu-1")], [ask(1)]).explain(ask(1))
    assert "gpu-1 is faulty" in told.lacks[0]
    assert "daemon" not in told.lacks[0], "that is for admins"
    assert told.holders == ()
    assert told.basis == "nobody can say when: no machine that has as much takes work now"


def test_who_only_asks_is_not_told_to_stand_in_the_queue() -> None:
    node = factories.node("n", 1)
    holder = held(0, "n", {"GPU-n-0": 16 * GIB})
    only_asks = replace(ask(2, "0.75"), workload_id="")
    told = Scene(NOW, [node], [holder], [ask(1, "12GiB")]).explain(only_asks)
    assert told.summary.startswith(
        "would be second in the queue; it asks for 0.75 of a GPU (18 GiB), and 8 GiB of 24 GiB are free on card 0 of n"
    )


def test_one_is_not_many() -> None:
    node = replace(factories.node("n", 0), report=replace(factories.node("n", 0).report, cpus_milli=2000))
    big = Request(2000, GIB)
    told = Scene(NOW, [node], [held(0, "n")], [replace(ask(1), request=big)]).explain(replace(ask(1), request=big))
    assert told.lacks == ("it asks for 2 CPUs, 1 GiB of memory, and 1 of 2 CPUs is free on n",)
    assert told.holders[0].holds == "1 CPU, 1 GiB of memory"


def test_the_start_that_a_time_limit_tells() -> None:
    node = factories.node("gpu-1", 1)
    before = held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    one = ask(1, "12GiB")
    told = Scene(NOW, [node], [before], [one]).explain(one)
    assert told.expected_start_at == NOW + 600
    assert told.basis == "the time limits of what runs and of what waits ahead of it"
    assert told.summary.endswith("expected to start within 10 min")


def test_the_head_may_be_offered_what_was_promised_to_itself() -> None:
    """Its own promise does not stand in its way when it asks for less."""
    node = factories.node("gpu-1", 1)
    before = held(0, "gpu-1", {"GPU-gpu-1-0": 16 * GIB}, ends_at=NOW + 600)
    one = ask(1, "20GiB")
    assert Scene(NOW, [node], [before], [one]).explain(one).fits_now_gpus == "8192MiB"


@pytest.mark.parametrize(
    ("gpus", "cpus", "memory", "lacks", "fits_now", "fits_gpus"),
    [
        (None, 9000, GIB, "9 CPUs, 1 GiB of memory, and 7 of 8 CPUs are free on n", "7 CPUs, 1 GiB of memory", None),
        (None, 1000, 40 * GIB, "1 CPU, 40 GiB of memory, and 31 GiB of 32 GiB of memory are free on n",
         "1 CPU, 31 GiB of memory", None),
        ("2", 1000, GIB, "2 whole GPUs, and 1 of 2 cards on n are wholly free", "1 whole GPU", "1"),
        ("A100", 1000, GIB, "1 whole GPU (A100), and n has no A100 that takes work", None, None),
        ("A30:2", 1000, GIB, "2 whole GPUs (A30), and 1 of 2 A30s on n are wholly free", "1 whole GPU (A30)", "A30:1"),
        ("6GiB", 8000, GIB, "6 GiB of VRAM, and 7 of 8 CPUs are free on n",
         "7 CPUs, 1 GiB of memory, 6 GiB of VRAM", None),
    ],
)  # fmt: skip
def test_what_is_lacking_in_numbers(
    gpus: str | None, cpus: int, memory: int, lacks: str, fits_now: str | None, fits_gpus: str | None
) -> None:
    one = ask(1, gpus, cpus=cpus, memory=memory)
    told = Scene(NOW, [factories.node("n", 2)], [held(0, "n", {"GPU-n-0": 4 * GIB})], [one]).explain(one)
    assert told.lacks[0] == f"it asks for {lacks}"
    assert (told.fits_now, told.fits_now_gpus) == (fits_now, fits_gpus)


def test_a_card_without_compute_left() -> None:
    node = factories.node("n", 1)
    busy = held(0, "n")
    share = factories.share(node.report.devices[0], memory_mib=1024, compute_milli=900)
    busy = replace(busy, lease=replace(busy.lease, shares=(share,)))
    one = ask(1, "0.25")
    told = Scene(NOW, [node], [busy], [one]).explain(one)
    assert told.lacks == ("it asks for 0.25 of a GPU (6 GiB), and 10% of the compute of card 0 of n is free",)
    assert told.fits_now_gpus is not None


def test_what_is_free_but_kept() -> None:
    before = held(0, "n", {"GPU-n-0": 16 * GIB}, ends_at=NOW + 600)
    queue = [ask(1, "20GiB"), ask(2, "8GiB")]
    scene = Scene(NOW, [factories.node("n", 1)], [before], queue)
    assert scene.explain(queue[1]).lacks == (
        "it asks for 8 GiB of VRAM, and 8 GiB of a card free on n are kept for one ahead of it, "
        "which starts within 10 min",
    )


def test_the_nearest_machine_is_named_first() -> None:
    nodes = [
        replace(factories.node("a", 2, state=NodeState.DRAINING), drained_by="root"),
        factories.node("b", 1),
        factories.node("c"),
    ]
    one = ask(1, "2")
    assert Scene(NOW, nodes, [], [one]).explain(one).lacks == (
        "it asks for 2 whole GPUs, and 1 of 1 cards on b are wholly free",
        "a is draining (drained by root)",
        "c has no GPU that takes work",
    )


def test_before_any_machine_reported() -> None:
    one = ask(1)
    scene = Scene(NOW, [], [], [one])
    assert scene.explain(one).summary == "first in the queue; no machine has reported yet"
    assert why_waiting(scene.snapshot(), scene.plan(), one, 1) == "first in the queue; no machine has reported yet"
    assert ever_fits(Grid(), one.request) is None


def test_one_that_came_after_the_plan_and_fits_lacks_nothing() -> None:
    scene = Scene(NOW, [factories.node("n", 1)], [], [])
    assert why_waiting(scene.snapshot(), scene.plan(), ask(1, "6GiB"), 1) == "first in the queue"


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "why"),
    [
        ([factories.node("a")], "1", 1000, "no machine here has a GPU that takes work; ask for none"),
        ([factories.node("a", 1)], "H100", 1000, "there is no GPU of the model 'H100' here; there are: A30"),
        ([factories.node("a", 2), factories.node("b", 1)], "4", 1000,
         "4 whole GPUs were asked for, and no machine has more than 2; ask for 2 or fewer"),
        ([factories.node("a", 1)], "30GiB", 1000,
         "30 GiB of VRAM were asked for, and the largest card has 24 GiB; ask for that or less"),
        ([factories.node("a")], None, 9000,
         "9 CPUs, 1 GiB of memory were asked for; with everything free, 8 of 8 CPUs are free on a; ask for less"),
    ],
)  # fmt: skip
def test_why_it_never_fits(nodes: list[Node], gpus: str | None, cpus: int, why: str) -> None:
    assert ever_fits(Grid(nodes), Request(cpus, 1024, parse_gpus(gpus))) == why


def test_a_draining_machine_may_come_back_a_lost_one_is_not_counted_on() -> None:
    request = Request(1000, 1024, parse_gpus("1"))
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.DRAINING)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST)]), request) is None
    assert ever_fits(Grid([factories.node("a", 1, state=NodeState.LOST), factories.node("b")]), request) is not None


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "first"), (10, "tenth"), (11, "11th"), (12, "12th"), (21, "21st"), (22, "22nd"), (23, "23rd"), (111, "111th"),
     (101, "101st")],
)  # fmt: skip
def test_ordinals(number: int, words: str) -> None:
    assert ordinal(number) == words
