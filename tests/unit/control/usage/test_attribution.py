"""Processes on GPUs, given to attempts: by what the engine says, once each, and never to the wrong one."""

from hypothesis import given
from hypothesis import strategies as st

from commonage.control.usage.attribution import (
    UnattributedProcess,
    attribute,
    parts_of,
    unattributed,
    unknown_pids,
    utilisation_of,
)
from commonage.domain.reasons.notes import ProcessInfo
from commonage.domain.statuses import ProcessOwner
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing import factories as make

AT = 1000.0
GPU = [make.device_key(f"GPU-{number}") for number in range(10)]


def sampled_gpu(*processes: ProcessMemory, uuid: str = "GPU-0", **fields: float) -> DeviceSample:
    return DeviceSample(uuid, 9000, fields.get("utilisation", 0.5), processes=processes)


def owner(pid: int, attempt: str | None = "a-1", started_at: float = 0.0, name: str = "python3") -> ProcessOwner:
    return ProcessOwner(pid, attempt, name, started_at)


def test_processes_of_an_attempt_are_added_up_on_each_device() -> None:
    sampled_gpus = [
        sampled_gpu(ProcessMemory(1, 1000), ProcessMemory(2, 500), ProcessMemory(3, 70)),
        sampled_gpu(ProcessMemory(1, 40), uuid="GPU-1"),
    ]
    round_ = attribute(make.SITE, sampled_gpus, [owner(1), owner(2), owner(3, "b-1")], AT)
    assert round_.memory_of("a-1", GPU[0]) == 1500
    assert round_.memory_of("a-1", GPU[1]) == 40
    assert round_.memory_of("b-1", GPU[0]) == 70
    assert round_.memory_of("b-1", GPU[1]) == 0, "the GPU lists no process of it"
    assert round_.memory_of("b-1", GPU[9]) is None, "that GPU was not read"
    assert unknown_pids(sampled_gpus) == {1, 2, 3}


def test_a_process_of_nobody_is_shown_with_its_name() -> None:
    round_ = attribute(
        make.SITE, [sampled_gpu(ProcessMemory(7, 300), ProcessMemory(8, 20))], [owner(7, None, name="blender")], AT
    )
    assert list(round_.unattributed_processes[GPU[0]]) == [
        UnattributedProcess(7, 300, "blender"),
        UnattributedProcess(8, 20, ""),
    ]
    gpu = make.device(uuid="GPU-0")
    found = unattributed(gpu, round_.unattributed_processes[GPU[0]])
    assert found.processes == (ProcessInfo(7, "blender"), ProcessInfo(8, ""))
    assert (found.gpu, found.used_mib, found.more) == ("0", 320, 0)
    many = unattributed(gpu, [UnattributedProcess(one, 1, "x") for one in range(1, 6)])
    assert (len(many.processes), many.more) == (3, 2)
    assert unattributed(gpu, [UnattributedProcess(1, None, "x")]).used_mib is None
    assert round_.uses == {}


def test_a_number_that_passed_to_another_process_counts_for_nobody() -> None:
    """The driver saw process 7 at 1000; the one of that number began at 1001."""
    sample = sampled_gpu(ProcessMemory(7, 300))
    for whose in ("a-1", None):
        round_ = attribute(make.SITE, [sample], [owner(7, whose, started_at=AT + 1)], AT)
        assert (round_.uses, dict(round_.unattributed_processes)) == ({}, {})


def test_a_process_that_began_between_two_engines_looks_is_still_owned() -> None:
    round_ = attribute(
        make.SITE, [sampled_gpu(ProcessMemory(7, 300))], [owner(7, None), owner(7, "a-1"), owner(7, None)], AT
    )
    assert round_.memory_of("a-1", GPU[0]) == 300


def test_a_process_listed_twice_is_counted_once() -> None:
    listed = [ProcessMemory(7, 300), ProcessMemory(7, 310), ProcessMemory(7, None)]
    round_ = attribute(make.SITE, [sampled_gpu(*listed)], [owner(7)], AT)
    assert round_.memory_of("a-1", GPU[0]) == 310


def test_a_missing_figure_is_not_nothing() -> None:
    round_ = attribute(make.SITE, [sampled_gpu(ProcessMemory(7, None))], [owner(7)], AT)
    assert round_.memory_of("a-1", GPU[0]) is None
    round_ = attribute(make.SITE, [sampled_gpu(ProcessMemory(7, None), ProcessMemory(8, 5))], [owner(7), owner(8)], AT)
    assert round_.memory_of("a-1", GPU[0]) == 5


def test_power_is_divided_by_what_each_computes_else_by_shares() -> None:
    device = make.device(uuid="GPU-0")
    holders = {"a-1": make.share(device, memory_mib=6144), "b-1": make.share(device, memory_mib=12288)}
    told = [ProcessMemory(1, 10, utilisation=0.6), ProcessMemory(2, 10, utilisation=0.2)]
    owners = [owner(1), owner(2, "b-1")]
    round_ = attribute(make.SITE, [sampled_gpu(*told)], owners, AT)
    assert {each: round(part, 2) for each, part in parts_of(round_, GPU[0], holders).items()} == {
        "a-1": 0.75,
        "b-1": 0.25,
    }
    assert utilisation_of(round_, GPU[0], "a-1", 0.1) == 0.6
    untold = attribute(make.SITE, [sampled_gpu(ProcessMemory(1, 10), ProcessMemory(2, 10))], owners, AT)
    parts = parts_of(untold, GPU[0], holders)
    assert round(parts["b-1"] / parts["a-1"], 6) == 2
    assert utilisation_of(untold, GPU[0], "b-1", parts["b-1"]) == 0.5 * parts["b-1"]
    alone = attribute(make.SITE, [sampled_gpu(ProcessMemory(1, 10))], owners, AT)
    assert parts_of(alone, GPU[0], holders) == {"a-1": 1.0, "b-1": 0.0}, "who is not on the GPU draws no power"
    assert parts_of(attribute(make.SITE, [sampled_gpu()], [], AT), GPU[0], {}) == {}


PIDS = st.integers(1, 6)
PROCESSES = st.builds(
    ProcessMemory, PIDS | st.none(), st.integers(0, 5000) | st.none(), st.sampled_from([None, None, "a-1"])
)


@given(
    st.lists(PROCESSES, max_size=8),
    st.lists(st.builds(owner, PIDS, st.sampled_from([None, "a-1", "b-1"]), st.sampled_from([0.0, AT + 1])), max_size=8),
)
def test_no_memory_is_counted_twice(listed: list[ProcessMemory], owners: list[ProcessOwner]) -> None:
    round_ = attribute(make.SITE, [sampled_gpu(*listed)] * 2, owners, AT)
    counted = sum(use.memory_mib or 0 for use in round_.uses.values())
    counted += sum(one.memory_mib or 0 for found in round_.unattributed_processes.values() for one in found)
    largest: dict[int, int] = {}
    for process in listed:
        if process.pid is not None:
            largest[process.pid] = max(largest.get(process.pid, 0), process.memory_mib or 0)
    nameless = sum(process.memory_mib or 0 for process in listed if process.pid is None)
    assert counted <= sum(largest.values()) + nameless
