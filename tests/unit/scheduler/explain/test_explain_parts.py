"""What is said of requests for GPUs that come in fixed parts: slots and MIG instances."""

from tests.unit.scheduler.clusters import GIB, NOW, Scene
from tests.unit.scheduler.test_plan import held, queued

from commonage.domain.reasons.waiting import GpuIsPartitioned, InsufficientGpuMemory
from commonage.testing import factories


def requested_mib(gpus: str, slots: int = 3) -> int:
    """What is said to be requested, of a request for a GPU in slots, of which one is free and too small, or none."""
    device = factories.device(uuid="GPU-n-0", slots=slots)
    one = queued(1, gpus)
    scene = Scene(NOW, [factories.node("n", [device])], [held(9, "n", {"GPU-n-0": 24 * GIB})], [one])
    (told,) = scene.explain(one).reasons
    assert isinstance(told, InsufficientGpuMemory)
    return told.requested_mib


def test_a_third_and_less_than_that_are_said_to_be_the_same_slot() -> None:
    assert requested_mib("1/3") == 8 * GIB
    assert requested_mib("4GiB") == 8 * GIB
    assert requested_mib("9GiB") == 16 * GIB
    assert requested_mib("4GiB", slots=0) == 4 * GIB


def test_a_whole_device_that_is_split_is_said_to_be() -> None:
    parts = [factories.device(100 + place, uuid=f"MIG-{place}", parent_uuid="GPU-1") for place in range(2)]
    one = queued(1, "1")
    assert Scene(NOW, [factories.node("n", parts)], [], [one]).explain(one).reasons == (
        GpuIsPartitioned(node="n", total=1, model=None),
    )
