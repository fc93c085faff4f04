"""The number of nodes of a node pool."""

from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import MachineKind, NodePoolPolicy, PendingNode
from commonage.domain.reasons import notes
from commonage.domain.reasons.waiting import NodeRequested
from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.autoscaling import (
    PendingRequest,
    PoolNode,
    ScalingDecision,
    decide_scaling,
    expected_node,
    nodes_needed,
)

KIND = MachineKind(8000, 32768, gpus=2, gpu_model="L4", gpu_memory_mib=24576, price_per_h=1.5)
POLICY = NodePoolPolicy("burst", KIND, least=0, most=4, idle_s=600, wait_s=60)
NOW = 10_000.0


def waiting(gpus: str, count: int = 1, since: float = 0.0, cpus: int = 1000) -> list[PendingRequest]:
    return [PendingRequest(Request(cpus, 1024, parse_gpus(gpus) if gpus else None), since)] * count


def test_adds_the_nodes_that_pending_requests_fill() -> None:
    assert decide_scaling(POLICY, [], waiting("1", 3), NOW).add == 2
    assert decide_scaling(POLICY, [], waiting("0.5", 4), NOW).add == 1
    assert decide_scaling(POLICY, [], waiting("1", 100), NOW).add == POLICY.most


def test_reason_has_the_number_of_workloads() -> None:
    assert decide_scaling(POLICY, [], waiting("1", 3), NOW).why == notes.PoolServesQueue(workloads=3, nodes=2)
    assert decide_scaling(POLICY, [], waiting("1"), NOW).why == notes.PoolServesQueue(workloads=1, nodes=1)


def test_coming_nodes_are_counted() -> None:
    coming = [PoolNode("burst-000001", coming=True)]
    decision = decide_scaling(POLICY, coming, waiting("1", 2), NOW)
    assert (decision.add, decision.why) == (0, notes.PoolNodesPending(nodes=1))
    assert decide_scaling(POLICY, coming, waiting("1", 3), NOW).add == 1


def test_adds_nothing_for_requests_that_never_fit() -> None:
    assert decide_scaling(POLICY, [], waiting("H100:1"), NOW) == ScalingDecision(why=notes.PoolIdle())
    assert decide_scaling(POLICY, [], waiting("", cpus=9000), NOW).add == 0
    assert decide_scaling(POLICY, [], waiting("H100:1") + waiting("1"), NOW).add == 1


def test_adds_nothing_before_the_wait_time() -> None:
    decision = decide_scaling(POLICY, [], waiting("1", since=NOW - 59), NOW)
    assert (decision.add, decision.why) == (0, notes.PoolWaits(wait_s=60))
    assert decide_scaling(POLICY, [], waiting("1", since=NOW - 60), NOW).add == 1


def test_removes_the_longest_idle_nodes_down_to_the_minimum() -> None:
    policy = NodePoolPolicy("burst", KIND, least=1, most=4, idle_s=600)
    members = [
        PoolNode("burst-a", idle_since=NOW - 700),
        PoolNode("burst-b", idle_since=NOW - 900),
        PoolNode("burst-c", idle_since=NOW - 10),
    ]
    assert decide_scaling(policy, members, [], NOW).remove == ("burst-b", "burst-a")
    assert decide_scaling(policy, members[:2], [], NOW).remove == ("burst-b",)
    assert decide_scaling(policy, members[:1], [], NOW).remove == ()


def test_removes_nothing_while_a_pending_request_fits() -> None:
    members = [PoolNode("burst-a", idle_since=NOW - 900)]
    assert decide_scaling(POLICY, members, waiting("1", since=NOW - 5), NOW).remove == ()
    assert decide_scaling(POLICY, members, waiting("H100:1", since=NOW - 5), NOW).remove == ("burst-a",)


def test_keeps_the_minimum_without_work() -> None:
    policy = NodePoolPolicy("burst", KIND, least=2, most=4)
    assert decide_scaling(policy, [PoolNode("burst-a", idle_since=0.0)], [], NOW) == ScalingDecision(
        1, why=notes.PoolBelowMinimum(minimum=2)
    )


def test_leaving_nodes_count_towards_the_maximum() -> None:
    policy = NodePoolPolicy("burst", KIND, least=1, most=2)
    members = [PoolNode("burst-a"), PoolNode("burst-b", leaving=True)]
    decision = decide_scaling(policy, members, waiting("1"), NOW)
    assert decision == ScalingDecision(why=notes.PoolAtMaximum(maximum=2, leaving=1))
    assert decide_scaling(policy, [PoolNode("burst-a", leaving=True)], [], NOW).add == 1
    three = [
        PoolNode("burst-a", idle_since=0.0),
        PoolNode("burst-b", idle_since=0.0),
        PoolNode("burst-c", leaving=True),
    ]
    assert decide_scaling(policy, three, waiting("1"), NOW).remove == ()


def test_lost_node_causes_no_change() -> None:
    lost = [PoolNode("burst-a")]
    assert decide_scaling(NodePoolPolicy("burst", KIND, most=1), lost, waiting("1"), NOW).add == 0
    assert decide_scaling(POLICY, lost, waiting("1"), NOW).add == 1


def test_expected_node_is_the_first_that_could_run_the_request() -> None:
    request, other = waiting("1")[0].request, waiting("H100:1")[0].request
    first = PendingNode(POLICY, "burst-a", NOW - 100)
    assert expected_node([first], request, NOW) == NodeRequested(pool="burst", expected_in_s=14 * 60)
    known = PendingNode(POLICY, "burst-b", NOW - 100, took_s=250.0)
    measured = NodeRequested(pool="burst", expected_in_s=3 * 60, is_measured=True)
    assert expected_node([first, known], request, NOW) == measured
    late = PendingNode(POLICY, "burst-b", NOW - 300, took_s=250.0)
    assert expected_node([late], request, NOW) == NodeRequested(pool="burst", requested_s=300)
    assert expected_node([first], other, NOW) is None
    assert expected_node([], request, NOW) is None


@given(
    queued_requests=st.lists(st.sampled_from(["1", "2", "0.5", "0.25", "6GiB", "H100:1", ""]), max_size=30),
    coming=st.integers(0, 4),
    busy=st.integers(0, 4),
    idle=st.integers(0, 4),
    leaving=st.integers(0, 4),
)
def test_node_count_stays_within_minimum_and_maximum(
    queued_requests: list[str], coming: int, busy: int, idle: int, leaving: int
) -> None:
    policy = NodePoolPolicy("burst", KIND, least=1, most=6, idle_s=600)
    members = [PoolNode(f"c{number}", coming=True) for number in range(coming)]
    members += [PoolNode(f"b{number}") for number in range(busy)]
    members += [PoolNode(f"i{number}", idle_since=0.0) for number in range(idle)]
    members += [PoolNode(f"l{number}", leaving=True) for number in range(leaving)]
    decision = decide_scaling(
        policy, members, [pending for queued in queued_requests for pending in waiting(queued)], NOW
    )
    stay = len(members) - leaving + decision.add - len(decision.remove)
    assert not (decision.add and decision.remove)
    assert stay >= 1 or len(members) + decision.add >= policy.most
    assert decision.add == 0 or len(members) + decision.add <= policy.most
    assert all(name.startswith("i") for name in decision.remove)


@given(queued_requests=st.lists(st.sampled_from(["1", "2", "0.5", "6GiB"]), min_size=1, max_size=20))
def test_served_requests_fit_on_the_new_nodes(queued_requests: list[str]) -> None:
    requests = [pending.request for queued in queued_requests for pending in waiting(queued)]
    wanted, served = nodes_needed(requests, POLICY, 0, 100)
    assert served == len(requests)
    assert nodes_needed(requests, POLICY, wanted, 100) == (0, 0)
