"""From the domain to the wire: what is shown, and what is not."""

from __future__ import annotations

from typing import get_args

import pytest

from commonage.api import encode
from commonage.control.queries.look import Standing
from commonage.domain.explanations import Explanation, Holder
from commonage.domain.nodes import Isolation
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.attempts import Running
from commonage.domain.reasons.waiting import NoNodes, Resources
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import TERMINAL, Condition, Kind, State
from commonage.testing import factories
from commonage.wire import platform, workloads

ANN = Principal("ann", frozenset({Scope.READ}))
STANDING = Standing(NoNodes(), 3)


def test_the_wire_has_the_words_of_the_domain() -> None:
    assert set(get_args(workloads.StateName)) == {state.value for state in State}
    assert set(get_args(workloads.KindName)) == {kind.value for kind in Kind}
    assert {state.value for state in TERMINAL} == workloads.TERMINAL_STATES
    assert set(get_args(platform.ScopeName)) == {scope.value for scope in Scope}
    conditions = get_args(workloads.DependencyIn.model_fields["condition"].annotation)
    assert set(conditions) == {condition.value for condition in Condition}


def test_one_that_waits_has_a_place_in_the_queue_and_none_on_a_node() -> None:
    lost = factories.attempt(state=State.LOST)
    found = encode.workload(factories.workload(State.HELD, attempt=lost), STANDING)
    assert (found.state, found.reason.code, found.position) == ("held", "NoNodes", 3)
    assert (found.node, found.shares, found.started_at, found.ended_at) == (None, [], None, None)
    assert found.attempts == 1


def test_one_that_runs_shows_where_and_with_what() -> None:
    device = factories.device(isolation=Isolation.MPS)
    allocation = factories.allocation(shares=[factories.share(device, memory_mib=6144)])
    running = factories.workload(
        State.RUNNING, attempt=factories.attempt(allocation=allocation), gpus="6GiB", time_limit_s=60
    )
    found = encode.workload(running, Standing(Running(node="node-1")))
    (share,) = found.shares
    assert (found.node, share.memory_mib, share.isolation, share.whole) == ("node-1", 6144, "mps", False)
    assert (found.started_at, found.ended_at, found.deadline) == (factories.NOW, None, factories.NOW + 60)
    assert found.request.gpus == "6144MiB"


def test_one_that_never_ran_has_an_end_too() -> None:
    stopped = factories.workload(State.STOPPED, attempt=None)
    assert encode.workload(stopped, Standing(NoNodes())).ended_at == factories.NOW


def test_secrets_and_inner_addresses_stay_inside() -> None:
    one = factories.workload(
        State.RUNNING, kind=Kind.SESSION, name="", owner="a b", secrets=(("TOKEN", "hush"),), variables=(("A", "1"),)
    )
    attempt = factories.attempt(one.id, url="http://10.0.0.1:1")
    one = factories.changed(one, attempt=attempt)
    found = encode.workload(one, Standing(NoNodes()))
    assert "hush" not in found.model_dump_json()
    assert (found.url, found.internal_url, found.variables) == ("/user/a%20b/", None, {"A": "1"})
    assert encode.workload(one, Standing(NoNodes()), internal=True).internal_url == "http://10.0.0.1:1"


@pytest.mark.parametrize(("state", "url"), [(State.QUEUED, None), (State.STARTING, None), (State.STOPPED, None)])
def test_a_session_has_an_address_only_while_it_runs(state: State, url: str | None) -> None:
    assert encode.workload(factories.workload(state, kind=Kind.SESSION, name="lab"), Standing(NoNodes())).url == url


def test_a_session_has_the_address_of_its_owners_name() -> None:
    running = factories.workload(State.RUNNING, kind=Kind.SESSION, name="lab", owner="ann")
    assert encode.workload(running, STANDING, "https://*.hub.example.org").url == (
        "https://ann.hub.example.org/user/ann/lab/"
    )


def test_of_others_work_only_the_owner_is_named() -> None:
    held = Holder("w1", "paper-draft", "bob", "session", "gpu-1", Resources(gpu_memory_mib=16 * 1024), None)
    mine = Holder("w2", "mine", "ann", "job", "gpu-1", Resources(gpu_memory_mib=4 * 1024), 1.0)
    found = encode.explanation(Explanation("w3", (NoNodes(),), holders=(held, mine)), State.QUEUED, ANN)
    assert [(one.workload_id, one.name, one.owner) for one in found.holders] == [
        (None, "", "bob"),
        ("w2", "mine", "ann"),
    ]
    admin = Principal("root", frozenset({Scope.ADMIN}))
    assert encode.holder(held, admin).name == "paper-draft"


def test_what_is_no_text_is_shown_as_such() -> None:
    assert encode.log_line(LogLine("\ud800x", 2)).text == "?x"
    assert encode.log_line(LogLine("naïve \x1b[0m", 9)).text == "naïve \x1b[0m"


def test_the_end_of_a_log_speaks_of_the_try_it_was_of() -> None:
    failed = factories.workload(State.FAILED, attempt=factories.attempt(number=2, state=State.FAILED, exit_code=3))
    assert (encode.log_end(failed, 2).exit_code, encode.log_end(failed, 1).exit_code) == (3, None)
    assert encode.log_end(failed, 1).attempt == 1
