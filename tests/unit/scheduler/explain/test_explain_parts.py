"""Explanations of GPU requests in fixed parts."""

from tests.unit.scheduler.clusters import GIB, NOW, Scene
from tests.unit.scheduler.test_plan import allocated, queued

from commonage.domain.reasons.waiting import GpuIsPartitioned, InsufficientGpuMemory
from commonage.testing import factories


def requested_mib(gpus: str, slots: int = 3) -> int:
    """The reported request of a GPU with slots, of which one is free but too small, or none."""
    device = factories.device(uuid="GPU-n-0", slots=slots)
    one = queued(1, gpus)
    scene = Scene(NOW, [factories.node("n", [device])], [allocated(9, "n", {"GPU-n-0": 24 * GIB})], [one])
    (explanation,) = scene.explain(one).reasons
    assert isinstance(explanation, InsufficientGpuMemory)
    return explanation.requested_mib


def test_shares_rounded_to_the_same_slot_are_explained_alike() -> None:
    assert requested_mib("1/3") == 8 * GIB
    assert requested_mib("4GiB") == 8 * GIB
    assert requested_mib("9GiB") == 16 * GIB
    assert requested_mib("4GiB", slots=0) == 4 * GIB


def test_partitioned_device_is_explained() -> None:
    parts = [factories.device(100 + place, uuid=f"MIG-{place}", parent_uuid="GPU-1") for place in range(2)]
    one = queued(1, "1")
    assert Scene(NOW, [factories.node("n", parts)], [], [one]).explain(one).reasons == (
        GpuIsPartitioned(node="n", total=1, model=None),
    )
