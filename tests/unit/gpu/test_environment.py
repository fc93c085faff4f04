"""A workload's environment for its shares: which GPUs it sees, and limits that never exceed a share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import Isolation, Share
from commonage.gpu.environment import DEFAULT_CONTEXT_MIB, MIB, share_environment

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def share(
    memory_mib: int = 8192, of_mib: int = 24576, uuid: str = "GPU-1", whole: bool = False, simulated: bool = False
) -> Share:
    return Share(
        device_uuid=uuid,
        device_index=0,
        model="A100",
        memory_mib=memory_mib,
        compute_milli=1000 if whole else max(1, memory_mib * 1000 // of_mib),
        whole=whole,
        device_memory_mib=of_mib,
        simulated=simulated,
    )


@st.composite
def shares(draw: st.DrawFn) -> list[Share]:
    """Some shares of different GPUs, each within its GPU."""
    drawn = []
    for index in range(draw(st.integers(1, 8))):
        of_mib = draw(st.integers(1, 300_000))
        memory_mib = draw(st.integers(1, of_mib))
        whole = draw(st.booleans())
        drawn.append(share(of_mib if whole else memory_mib, of_mib, f"GPU-{index}", whole, draw(st.booleans())))
    return drawn


def test_a_third_of_a_device() -> None:
    assert share_environment([share(8192, 24576)]) == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "COMMONAGE_GPU_MEMORY_MIB": "8192",
        "NVIDIA_GPU_MEMORY_REQUEST": "8192",
        "NVIDIA_GPU_MEMORY_LIMIT": "8192",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.312500",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUPY_GPU_MEMORY_LIMIT": str((8192 - DEFAULT_CONTEXT_MIB) * MIB),
        "COMMONAGE_GPU_USABLE_MIB": str(8192 - DEFAULT_CONTEXT_MIB),
    }


@pytest.mark.parametrize("level", [Isolation.DRIVER_LIMIT, Isolation.PRELOAD])
def test_where_the_limit_is_all_that_cuda_says_there_is_the_fraction_is_of_it(level: Isolation) -> None:
    held = replace(share(8192, 24576), isolation=level)
    fraction = float(share_environment([held])["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    assert fraction == pytest.approx((8192 - DEFAULT_CONTEXT_MIB) / 8192, abs=1e-6)


def test_whole_devices_are_made_visible_and_not_limited() -> None:
    both = [share(24576, 24576, "GPU-2", whole=True), share(24576, 24576, "GPU-1", whole=True)]
    assert share_environment(both) == {
        "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-1",
        "COMMONAGE_GPU_MEMORY_MIB": "24576",
    }


def test_no_share_hides_all_devices() -> None:
    assert share_environment([]) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_simulated_device_is_flagged_and_kept_from_the_container_runtime() -> None:
    variables = share_environment([share(simulated=True)])
    assert variables["COMMONAGE_GPU_SIMULATED"] == "1"
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_measured_context_counts_for_its_device_only() -> None:
    one, other = share(uuid="GPU-1"), share(uuid="GPU-2")
    assert share_environment([one], {"GPU-1": 192})[FRACTION] == "0.325520"
    assert share_environment([other], {"GPU-1": 192}) == share_environment([other])
    assert share_environment([other], {"GPU-1": 192}, 0)[FRACTION] == "0.333333"


@pytest.mark.parametrize("memory_mib", [1, DEFAULT_CONTEXT_MIB - 1, DEFAULT_CONTEXT_MIB])
def test_a_share_below_the_context_is_never_unlimited(memory_mib: int) -> None:
    variables = share_environment([share(memory_mib)])
    assert variables["CUPY_GPU_MEMORY_LIMIT"] == str(MIB)
    assert float(variables[FRACTION]) > 0


@given(shares(), st.integers(0, 2000))
def test_limits_hold_on_every_limited_device(held: list[Share], context_mib: int) -> None:
    variables = share_environment(held, default_context_mib=context_mib)
    limited = [one for one in held if not one.whole]
    assert (FRACTION in variables) == bool(limited)
    for one in limited:
        # A share smaller than the context cannot be used at all; whatever is said then is at most 1 MiB or
        # 1e-6.
        room_mib = max(1, one.memory_mib - context_mib)
        assert 0 < float(variables[FRACTION]) <= max(room_mib / one.device_memory_mib, 1e-6)
        assert 0 < int(variables["CUPY_GPU_MEMORY_LIMIT"]) <= room_mib * MIB
        assert int(variables["NVIDIA_GPU_MEMORY_LIMIT"]) <= one.memory_mib
        assert "PYTORCH_CUDA_ALLOC_CONF" not in variables, "PyTorch before 2.10 would refuse CUDA"
    assert int(variables["COMMONAGE_GPU_MEMORY_MIB"]) == min(one.memory_mib for one in held)


@given(shares())
def test_exactly_the_held_devices_are_seen(held: list[Share]) -> None:
    variables = share_environment(held)
    assert variables["CUDA_VISIBLE_DEVICES"].split(",") == [one.device_uuid for one in held]
    real = [one.device_uuid for one in held if not one.simulated]
    assert variables["NVIDIA_VISIBLE_DEVICES"] == (",".join(real) or "void")
    assert ("COMMONAGE_GPU_SIMULATED" in variables) == (len(real) < len(held))
    assert all(value and value.isprintable() for value in variables.values())
