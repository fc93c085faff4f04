"""GPUs in proportion, quantities for reading, sparklines."""

from __future__ import annotations

import pytest
from tests.fakes.portal import ADMIN, USER

from commonage.control.access import access_of
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.control.settings import ControlSettings
from commonage.domain.explanations import Holder
from commonage.domain.principals import Principal
from commonage.domain.reasons.waiting import Resources
from commonage.domain.workloads import State
from commonage.portal.labels import STATES
from commonage.portal.templating import hours, instant, money, percent
from commonage.portal.views.device_rows import node_rows, totals
from commonage.portal.views.nodes import HEIGHT, WIDTH, sparkline
from commonage.ports.metrics import Point
from commonage.testing import factories

ANN = Principal("ann", USER)


def view(*holders: Holder, memory_mib: int = 24 * 1024) -> NodeView:
    device_row = factories.device(memory_mib=memory_mib)
    free = memory_mib - sum(one.holds.gpu_memory_mib for one in holders)
    device = DeviceView(device_row, free, 1000, 512, 0.25, holders)
    return NodeView(factories.node(devices=[device_row]), 4000, 16 * 1024, (device,), len(holders))


ANNS = access_of(ANN, ControlSettings())
ROOTS = access_of(Principal("root", ADMIN), ControlSettings())


def holder(owner: str, mib: int, name: str = "work") -> Holder:
    return Holder("w" * 13, name, owner, "job", "node-1", Resources(gpu_memory_mib=mib), tenant="commons")


def test_shares_lie_side_by_side_in_proportion() -> None:
    device_row = node_rows([view(holder("ann", 12 * 1024), holder("bob", 6 * 1024))], ANNS)[0].device_rows[0]
    assert [(one.x, one.width) for one in device_row.segments] == [("0", "50"), ("50", "25")]
    assert device_row.summary == "18 GiB of 24 GiB allocated"
    assert device_row.free_from is None
    assert node_rows([view(holder("ann", 6 * 1024))], ANNS)[0].device_rows[0].free_from == "25"


def test_others_work_has_an_owner_and_no_name() -> None:
    mine, theirs = (
        node_rows([view(holder("ann", 1024, "mine"), holder("bob", 1024, "theirs"))], ANNS)[0].device_rows[0].segments
    )
    assert (mine.title, mine.colour) == ("mine", "own")
    assert mine.workload_id is not None
    assert (theirs.title, theirs.owner, theirs.workload_id) == ("job", "bob", None)
    assert theirs.colour.startswith("other")
    admins = node_rows([view(holder("bob", 1024, "theirs"))], ROOTS)[0].device_rows[0].segments[0]
    assert admins.title == "theirs"


def test_a_device_without_memory_is_drawn_all_the_same() -> None:
    device_row = node_rows([view(memory_mib=0)], ANNS)[0].device_rows[0]
    assert device_row.segments == ()
    assert device_row.free_from is None


def test_totals_are_over_all_nodes_and_leave_out_devices_where_there_are_none() -> None:
    assert [one.label for one in totals([view(holder("ann", 1024))])] == ["GPU memory", "CPU", "Memory"]
    bare = NodeView(factories.node(), 8000, 1024, (), 0)
    assert [one.label for one in totals([bare])] == ["CPU", "Memory"]
    assert totals([])[0].allocated == 0


@pytest.mark.parametrize(
    ("part", "whole", "text"), [(1, 3, "33.33"), (0, 5, "0"), (5, 5, "100"), (9, 5, "100"), (-1, 5, "0"), (1, 0, "0")]
)
def test_percent_stays_within_the_device(part: float, whole: float, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0001, "< 0.001"), (0.05, "0.050"), (1.5, "1.50"), (12.34, "12.3"), (12345, "12,345")],
)
def test_hours_have_about_three_digits(value: float, text: str) -> None:
    assert hours(value) == text


def test_money_does_not_pretend_to_be_nothing() -> None:
    assert money(0.0, "EUR") == "0.00 EUR"
    assert money(0.004, "EUR") == "< 0.01 EUR"
    assert money(1234.5, "") == "1,234.50"


def test_instants_are_readable_without_scripts() -> None:
    assert instant(0, "ago") == '<time datetime="1970-01-01T00:00:00Z" data-form="ago">1970-01-01 00:00 UTC</time>'


def test_a_sparkline_stays_in_its_box() -> None:
    points = [Point(at, value, value, value) for at, value in ((0.0, -1.0), (1800.0, 0.5), (3600.0, 7.0))]
    placed = [tuple(map(float, pair.split(","))) for pair in sparkline(points, 1.0, 3600.0).split()]
    assert [x for x, _ in placed] == [0.0, WIDTH / 2, WIDTH]
    assert all(0 <= y <= HEIGHT for _, y in placed)
    assert placed[0][1] > placed[1][1] > placed[2][1]


def test_states_have_their_own_names_as_labels() -> None:
    assert {state.value for state in State} == {sign.label.lower().replace(" ", "_") for sign in STATES.values()}
    assert STATES[State.HELD].label == "Held"
