"""Simulated GPUs: how they are written, and figures that are smooth, repeatable and within what is held."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.gpu.simulated import DEFAULT_MODEL, RAMP_S, SimulatedDevices, SimulatedSpec, parse_simulated
from commonage.ports.devices import ProcessMemory
from commonage.testing.devices_contract import allocation_of, share_of


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("simulated", [SimulatedSpec(1, 24576)]),
        ("simulated:2x24GiB", [SimulatedSpec(2, 24576)]),
        ("simulated:24GiB", [SimulatedSpec(1, 24576)]),
        (" Simulated: 2 x 24 GiB ", [SimulatedSpec(2, 24576)]),
        ("simulated:1x80GiB,2x24GiB", [SimulatedSpec(1, 81920), SimulatedSpec(2, 24576)]),
        ("simulated:2x24GiB:A100", [SimulatedSpec(2, 24576, "A100")]),
        (
            "simulated:1x512MiB:Quadro RTX 4000,3X1.5G",
            [SimulatedSpec(1, 512, "Quadro RTX 4000"), SimulatedSpec(3, 1536)],
        ),
    ],
)
def test_parse(text: str, gpus: list[SimulatedSpec]) -> None:
    assert list(parse_simulated(text)) == gpus


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a list of simulated GPUs"),
        ("2x24GiB", "not a list of simulated GPUs"),
        ("simulated:", "not a list of simulated GPUs"),
        ("simulated:,", "has the part ''"),
        ("simulated:2x24GiB,", "has the part ''"),
        ("simulated:2", "has the part '2'"),
        ("simulated:2x24", "has the part '2x24'"),
        ("simulated:-1x24GiB", "has the part '-1x24GiB'"),
        ("simulated:axb", "has the part 'axb'"),
        ("simulated:2x24GiB:", "has the part '2x24GiB:'"),
        ("simulated:2x24GiB:a\nb", "has the part"),
        ("simulated:٢x24GiB", "has the part"),
        ("simulated:2x24GiB:" + "x" * 64, "has the part"),
        ("simulated:0x24GiB", "asks for no GPU"),
        ("simulated:2x0GiB", "above zero"),
        ("simulated:2x24parsecs", "is not an amount of memory"),
        ("simulated:2x99999999GiB", "more than 16384 GiB"),
        ("simulated:200x1GiB,57x1GiB", "more than 256 GPUs"),
        ("simulated:999999x1GiB", "more than 256 GPUs"),
    ],
)
def test_parse_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)) as raised:
        parse_simulated(text)
    assert raised.value.field == "gpus"
    assert len(raised.value.message) < 400


@given(st.text(max_size=40))
def test_parse_takes_it_or_refuses_it(text: str) -> None:
    try:
        gpus = parse_simulated("simulated:" + text)
    except InvalidInput:
        return
    assert gpus
    assert all(some.count > 0 and some.memory_mib > 0 for some in gpus)


@given(
    st.lists(
        st.builds(SimulatedSpec, st.integers(1, 20), st.integers(1, 2**20), st.sampled_from(["A100", DEFAULT_MODEL])),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_written_is_what_is_simulated(gpus: list[SimulatedSpec]) -> None:
    text = "simulated:" + ",".join(f"{some.count}x{some.memory_mib}MiB:{some.model}" for some in gpus)
    devices = SimulatedDevices(parse_simulated(text), node_name="n", now=lambda: 0.0).inventory()
    assert [device.memory_mib for device in devices] == [some.memory_mib for some in gpus for _ in range(some.count)]
    assert [device.index for device in devices] == list(range(len(devices)))
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(device.simulated for device in devices)


class Node:
    """Two simulated GPUs of 24 GiB, and their clock."""

    def __init__(self, node_name: str = "here") -> None:
        self.now = 1_000_000.0
        self.devices = SimulatedDevices([SimulatedSpec(2, 24576)], node_name=node_name, now=lambda: self.now)


def test_uuids_are_the_nodes_own_and_stay() -> None:
    uuids = [gpu.uuid for gpu in Node().devices.inventory()]
    assert uuids == [gpu.uuid for gpu in Node().devices.inventory()]
    assert not set(uuids) & {gpu.uuid for gpu in Node("there").devices.inventory()}
    assert all(uuid.startswith("GPU-SIM-") for uuid in uuids)


def test_an_idle_device_measures_nothing() -> None:
    node = Node()
    for sample in node.devices.measure():
        assert (sample.memory_used_mib, sample.utilisation, sample.processes) == (0, 0.0, ())


def test_a_device_measures_what_is_held_of_it() -> None:
    node = Node()
    first, second = node.devices.inventory()
    node.devices.note_allocations([allocation_of("a-1", [share_of(first, 8192)], node.now)])
    node.now += RAMP_S
    one, other = node.devices.measure()
    assert one.memory_used_mib is not None
    assert 0.8 * 8192 <= one.memory_used_mib + 1 <= 0.9 * 8192 + 1
    assert 0 < (one.utilisation or 0) < 0.34
    assert [process.attempt_id for process in one.processes] == ["a-1"]
    assert other.memory_used_mib == 0
    node.devices.note_allocations([allocation_of("b-1", [share_of(second)], node.now - RAMP_S)])
    one, other = node.devices.measure()
    assert one.memory_used_mib == 0
    assert (other.memory_used_mib or 0) > 0.79 * 24576
    assert (other.power_w or 0) > 100


@given(
    st.lists(st.tuples(st.integers(1, 6000), st.floats(-1e6, 1e6)), max_size=4),
    st.floats(-1e6, 1e6, allow_nan=False),
)
def test_figures_stay_within_the_shares(held: list[tuple[int, float]], now: float) -> None:
    node = Node()
    node.now = now
    gpu = node.devices.inventory()[0]
    allocations = [allocation_of(f"a{n}-1", [share_of(gpu, mib)], at) for n, (mib, at) in enumerate(held)]
    node.devices.note_allocations(allocations)
    sample = node.devices.measure()[0]
    assert node.devices.measure()[0] == sample
    assert 0 <= (sample.utilisation or 0) <= 1
    assert sample.memory_used_mib == sum(process.memory_mib or 0 for process in sample.processes)
    for allocation, process in zip(allocations, sample.processes, strict=True):
        assert 0 <= (process.memory_mib or 0) <= allocation.shares[0].memory_mib


def test_figures_are_smooth() -> None:
    node = Node()
    gpu = node.devices.inventory()[0]
    node.devices.note_allocations([allocation_of("a-1", [share_of(gpu)], node.now)])
    before = 0.0
    for _ in range(600):
        node.now += 0.5
        used = float(node.devices.measure()[0].memory_used_mib or 0)
        assert abs(used - before) < 0.05 * gpu.memory_mib
        before = used


def test_a_test_can_overrun_a_share_and_put_a_stranger_on_a_device() -> None:
    devices = SimulatedDevices([SimulatedSpec(1, 24576)], node_name="here", now=lambda: 1000.0)
    gpu = devices.inventory()[0]
    devices.note_allocations([allocation_of("a-1", [share_of(gpu, 8192)])])
    devices.overruns["a-1"] = 12_000
    devices.unattributed_processes[gpu.uuid] = (ProcessMemory(99, 500),)
    (sample,) = devices.measure()
    assert [(one.attempt_id, one.pid, one.memory_mib) for one in sample.processes] == [
        ("a-1", None, 12_000),
        (None, 99, 500),
    ]
    assert sample.memory_used_mib == 12_500
