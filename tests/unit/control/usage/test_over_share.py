"""When an attempt is over its share, and whether another workload needs the memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.control.usage.attribution import MeasurementRound, Use
from commonage.control.usage.over_share import Excess, Excesses, needed_by
from commonage.domain.nodes import Allocation
from commonage.domain.reasons.attempts import NeededBy
from commonage.domain.requests import parse_gpus
from commonage.ports.devices import DeviceSample
from commonage.testing import factories as make

DEVICE = make.device(uuid="GPU-0", memory_mib=24 * 1024)
KEY, OTHER = make.device_key("GPU-0"), make.device_key("GPU-1")
DEVICES = {KEY: DEVICE}
SHARE = 8 * 1024


def allocation(attempt: str = "a-1", memory_mib: int = SHARE) -> Allocation:
    return make.allocation(attempt, shares=[make.share(DEVICE, memory_mib=memory_mib)])


def seen(at: float, used: int | None = None, **others: Use) -> MeasurementRound:
    uses = {("a-1", KEY): Use(used, None)} if used is not None else {}
    return MeasurementRound(at, {KEY: DeviceSample("GPU-0", used, 0.5)}, uses)


def test_a_context_above_its_share_is_no_fault() -> None:
    excesses = Excesses(512, 20)
    assert excesses.take(seen(0, SHARE + 512), [allocation()], DEVICES) == []
    (found,) = excesses.take(seen(5, SHARE + 513), [allocation()], DEVICES)
    assert (found.used_mib, found.share_mib, found.since, found.sure) == (SHARE + 513, SHARE, 5, False)
    (found,) = excesses.take(seen(10, SHARE + 2000), [allocation()], DEVICES)
    assert (found.since, found.rounds, found.sure) == (5, 2, True)


def test_a_context_that_was_measured_counts_where_it_is_larger() -> None:
    device = replace(DEVICE, context_mib=700)
    excesses = Excesses(512, 20)
    assert excesses.take(seen(0, SHARE + 700), [allocation()], {KEY: device}) == []
    assert len(excesses.take(seen(5, SHARE + 701), [allocation()], {KEY: device})) == 1


@pytest.mark.parametrize(
    "between",
    [
        seen(5, 100),
        seen(5),  # the GPU lists it no more
        seen(500, 9000),  # the node slept meanwhile
        seen(-100, 9000),  # the clock was set back
    ],
)
def test_what_is_interrupted_begins_anew(between: MeasurementRound) -> None:
    excesses = Excesses(512, 20)
    excesses.take(seen(0, 9000), [allocation()], DEVICES)
    excesses.take(between, [allocation()], DEVICES)
    (found,) = excesses.take(seen(505, 9000), [allocation()], DEVICES)
    assert found.since >= 5 or found.since == between.at
    assert found.since != 0


def test_a_missing_figure_neither_counts_nor_ends_it() -> None:
    excesses = Excesses(512, 20)
    excesses.take(seen(0, 9000), [allocation()], DEVICES)
    unknown = MeasurementRound(5, {KEY: DeviceSample("GPU-0", None, None)}, {("a-1", KEY): Use(None, None)})
    assert excesses.take(unknown, [allocation()], DEVICES) == []
    assert excesses.take(MeasurementRound(6), [allocation()], DEVICES) == [], "a GPU that does not answer says nothing"
    assert excesses.take(seen(10, 9000), [allocation()], DEVICES)[0].since == 0
    assert excesses.take(MeasurementRound(15), [allocation()], {}) == [], "the GPU is gone"


def test_a_whole_device_cannot_be_overrun_and_an_impossible_figure_is_none() -> None:
    whole = allocation(memory_mib=DEVICE.memory_mib)
    assert Excesses(0, 20).take(seen(0, DEVICE.memory_mib + 100), [whole], DEVICES) == []
    assert Excesses(0, 20).take(seen(0, DEVICE.memory_mib * 2), [allocation()], DEVICES) == []


def test_memory_of_a_device_it_was_given_no_part_of() -> None:
    other = {OTHER: make.device(uuid="GPU-1")}
    round_ = MeasurementRound(0, {OTHER: DeviceSample("GPU-1", 300, None)}, {("a-1", OTHER): Use(300, None)})
    (found,) = Excesses(512, 20).take(round_, [allocation()], other)
    assert (found.used_mib, found.share_mib) == (300, 0)


def test_an_attempt_without_a_allocation_is_not_judged() -> None:
    assert Excesses(0, 20).take(seen(0, 20_000), [allocation("b-1")], DEVICES) == []


@given(
    st.lists(
        st.tuples(st.floats(0, 1000), st.one_of(st.none(), st.integers(0, SHARE + 512)), st.integers(0, 30_000)),
        max_size=20,
    )
)
def test_an_attempt_within_its_share_is_never_found(rounds: list[tuple[float, int | None, int]]) -> None:
    """Whatever others do, at whatever times, with or without figures."""
    excesses = Excesses(512, 20)
    allocated = [allocation(), allocation("b-1")]
    for at, mine, theirs in rounds:
        uses = {("a-1", KEY): Use(mine, None), ("b-1", KEY): Use(theirs, None)}
        found = excesses.take(MeasurementRound(at, {KEY: DeviceSample("GPU-0", None, None)}, uses), allocated, DEVICES)
        assert all(each.attempt_id == "b-1" for each in found)


OVER = Excess("a-1", KEY, DEVICE, 14 * 1024, SHARE, 0.0, 2)


def full(used: int | None, neighbour: int | None) -> MeasurementRound:
    uses = {("a-1", KEY): Use(OVER.used_mib, None)}
    if neighbour is not None:
        uses["b-1", KEY] = Use(neighbour, None)
    return MeasurementRound(0, {KEY: DeviceSample("GPU-0", used, None)}, uses)


def test_a_neighbour_whose_share_is_no_longer_free_needs_it() -> None:
    allocated = [allocation(), allocation("b-1", 12 * 1024)]
    found = needed_by(OVER, full(14 * 1024, None), allocated, [])
    assert found == NeededBy(is_queued=False, needed_mib=12 * 1024, free_mib=10 * 1024)
    assert needed_by(OVER, full(16 * 1024, 2 * 1024), allocated, []) is not None, "10 GiB owed, 8 GiB free"
    assert needed_by(OVER, full(26 * 1024, 12 * 1024), allocated, []) is None, "it has all of its own already"
    assert needed_by(OVER, full(14 * 1024, None), [allocation(), allocation("b-1", 9 * 1024)], []) is None, (
        "there is room"
    )


def test_nobody_is_said_to_need_what_nobody_measured() -> None:
    allocated = [allocation(), allocation("b-1", 12 * 1024)]
    assert needed_by(OVER, full(None, None), allocated, []) is None
    assert needed_by(OVER, MeasurementRound(0), allocated, []) is None
    unknown = MeasurementRound(0, {KEY: DeviceSample("GPU-0", 14 * 1024, None)}, {("b-1", KEY): Use(None, None)})
    assert needed_by(OVER, unknown, allocated, []) is None


@pytest.mark.parametrize(
    ("asked", "needs"),
    [("16GiB", True), ("17GiB", True), ("0.5", True), ("1", False), ("A100:4GiB", False), ("A30:4GiB", True)],
)
def test_one_in_the_queue_needs_it_if_it_would_fit_without_the_culprit(asked: str, needs: bool) -> None:
    gpu = parse_gpus(asked)
    assert gpu is not None
    allocated = [allocation(), allocation("b-1", 7 * 1024)]
    found = needed_by(OVER, full(20 * 1024, 7 * 1024), allocated, [gpu])
    assert (found is not None) is needs
    assert found is None or found.is_queued


def test_two_whole_devices_are_not_waited_for_here() -> None:
    gpu = parse_gpus("2")
    assert gpu is not None
    assert needed_by(OVER, full(14 * 1024, None), [allocation()], [gpu]) is None
