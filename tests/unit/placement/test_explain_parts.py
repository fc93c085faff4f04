"""What is said of requests for cards that come in fixed parts: slots and MIG instances."""

from tests.unit.placement.fleets import GIB, NOW, Scene
from tests.unit.placement.test_plan import ask, held

from commonage.testing import factories


def lacks(gpus: str, slots: int = 3) -> str:
    """Of a request for a card in slots, of which one is free and too small, or none."""
    card = factories.device(uuid="GPU-n-0", slots=slots)
    one = ask(1, gpus)
    (told,) = Scene(NOW, [factories.node("n", [card])], [held(9, "n", {"GPU-n-0": 24 * GIB})], [one]).explain(one).lacks
    return told


def test_a_third_and_less_than_that_are_said_to_be_the_same_slot() -> None:
    assert "it asks for 0.333 of a GPU (8 GiB)" in lacks("1/3")
    assert "it asks for 4 GiB of VRAM (a share of 8 GiB)" in lacks("4GiB")
    assert "it asks for 9 GiB of VRAM (a share of 16 GiB)" in lacks("9GiB")
    assert "it asks for 4 GiB of VRAM, and" in lacks("4GiB", slots=0)


def test_a_whole_card_that_is_split_is_said_to_be() -> None:
    parts = [factories.device(100 + place, uuid=f"MIG-{place}", parent_uuid="GPU-1") for place in range(2)]
    one = ask(1, "1")
    (told,) = Scene(NOW, [factories.node("n", parts)], [], [one]).explain(one).lacks
    assert "split into MIG instances" in told
