"""Workloads: submissions and queries parsed from messages, and what responses show to each caller."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from commonage.api.routes.events import log_end_out, log_line_out
from commonage.api.routes.workloads import (
    MAX_VRAM_MIB,
    explanation_out,
    holder_out,
    parse_filter,
    parse_submission,
    workload_out,
)
from commonage.control.access import access_of
from commonage.control.queries.workloads import StateDetails
from commonage.control.settings import ControlSettings
from commonage.domain.errors import InvalidInput
from commonage.domain.explanations import Explanation, Holder
from commonage.domain.nodes import Isolation
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.attempts import Running
from commonage.domain.reasons.waiting import NoNodes, Resources
from commonage.domain.requests import GpuRequest
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import TERMINAL, Condition, Dependency, Kind, RetryPolicy, State
from commonage.ports.store import Filter
from commonage.testing import factories
from commonage.wire import installation, workloads
from commonage.wire.workloads import DependencyIn, SubmitIn, WorkloadsQuery


def test_submission_has_every_field() -> None:
    body = SubmitIn(
        kind="service", name="n", environment="e", command=["a", "b"], cpus="1500m", memory_mib=6144, gpus="A100:6GiB",
        time_limit_s=5400, priority=-3, grace_s=0, retries=2, backoff_s=60,
        depends_on=[DependencyIn(id="w", condition="afterany")], array=4, variables={"A": "1"}, secrets={"B": "2"},
        bundle="0" * 64, tenant="t", key="k", owner="o",
    )  # fmt: skip
    made = parse_submission(body)
    assert (made.kind, made.name, made.environment, made.command) == (Kind.SERVICE, "n", "e", ("a", "b"))
    assert (made.cpus_milli, made.memory_mib, made.gpu) == (1500, 6144, GpuRequest(vram_mib=6144, model="A100"))
    assert (made.time_limit_s, made.priority, made.grace_s, made.retry) == (5400, -3, 0, RetryPolicy(2, 60.0))
    assert made.depends_on == (Dependency("w", Condition.AFTER_ANY),)
    assert (made.array_size, made.variables, made.secrets) == (4, (("A", "1"),), (("B", "2"),))
    assert (made.bundle, made.tenant, made.key, made.owner) == ("0" * 64, "t", "k", "o")


def test_omitted_fields_keep_their_defaults() -> None:
    made = parse_submission(SubmitIn())
    assert (made.kind, made.cpus_milli, made.memory_mib, made.gpu, made.environment) == (
        Kind.JOB,
        None,
        None,
        None,
        None,
    )
    assert (made.time_limit_s, made.grace_s, made.retry, made.array_size) == (None, 10, RetryPolicy(), 0)


def test_refuses_more_vram_than_stores_hold() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_submission(SubmitIn(gpus="999999999999PiB"))
    assert (caught.value.field, caught.value.problem_code) == ("gpus", "invalid-gpus")


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_limit_s", "90m"), ("time_limit_s", "90"), ("time_limit_s", 0), ("grace_s", -1), ("backoff_s", True),
     ("memory_mib", "6GiB"), ("memory_mib", 0), ("memory_mib", 2**31), ("time", "90m"), ("memory", "6GiB")],
)  # fmt: skip
def test_refuses_durations_and_memory_as_text(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        SubmitIn.model_validate({field: value})
    assert [one["loc"] for one in caught.value.errors()] == [(field,)]


@given(
    cpus=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
    gpus=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_cpus_and_gpus_are_parsed_or_refused(cpus, gpus) -> None:
    body = SubmitIn.model_construct(**{**SubmitIn().__dict__, "cpus": cpus, "gpus": gpus})
    try:
        made = parse_submission(body)
    except InvalidInput as refused:
        assert refused.field in {"cpus", "gpus"}
        return
    assert made.cpus_milli is None or made.cpus_milli > 0
    assert made.gpu is None or made.gpu.vram_mib <= MAX_VRAM_MIB


def test_query_becomes_a_filter() -> None:
    assert parse_filter(WorkloadsQuery()) == Filter()
    query = WorkloadsQuery(
        owner="o", kind="job", state=["lost", "failed"], node="n", environment="e", array="a", text="t"
    )
    assert parse_filter(query) == Filter(
        owner="o", kinds=(Kind.JOB,), states=frozenset({State.LOST, State.FAILED}), node="n", environment="e",
        array_id="a", text="t",
    )  # fmt: skip


ANN = Principal("ann", frozenset({Scope.READ}))
STANDING = StateDetails(NoNodes(), 3)


def test_wire_literals_equal_domain_enums() -> None:
    assert set(get_args(workloads.StateName)) == {state.value for state in State}
    assert set(get_args(workloads.KindName)) == {kind.value for kind in Kind}
    assert {state.value for state in TERMINAL} == workloads.TERMINAL_STATES
    assert set(get_args(installation.ScopeName)) == {scope.value for scope in Scope}
    conditions = get_args(workloads.DependencyIn.model_fields["condition"].annotation)
    assert set(conditions) == {condition.value for condition in Condition}


def test_waiting_workload_shows_position_and_no_node() -> None:
    lost = factories.attempt(state=State.LOST)
    found = workload_out(factories.workload(State.HELD, attempt=lost), STANDING)
    assert (found.state, found.reason.code, found.position) == ("held", "NoNodes", 3)
    assert (found.node, found.shares, found.started_at, found.ended_at) == (None, [], None, None)
    assert found.attempts == 1


def test_running_workload_shows_its_allocation() -> None:
    device = factories.device(isolation=Isolation.MPS)
    allocation = factories.allocation(shares=[factories.share(device, memory_mib=6144)])
    running = factories.workload(
        State.RUNNING, attempt=factories.attempt(allocation=allocation), gpus="6GiB", time_limit_s=60
    )
    found = workload_out(running, StateDetails(Running(node="node-1")))
    (share,) = found.shares
    assert (found.node, share.memory_mib, share.isolation, share.whole) == ("node-1", 6144, "mps", False)
    assert (found.started_at, found.ended_at, found.deadline) == (factories.NOW, None, factories.NOW + 60)
    assert found.request.gpus == "6144MiB"


def test_workload_that_never_ran_has_an_end() -> None:
    stopped = factories.workload(State.STOPPED, attempt=None)
    assert workload_out(stopped, StateDetails(NoNodes())).ended_at == factories.NOW


def test_secrets_and_internal_urls_are_not_shown() -> None:
    one = factories.workload(
        State.RUNNING, kind=Kind.SESSION, name="", owner="a b", secrets=(("TOKEN", "hush"),), variables=(("A", "1"),)
    )
    attempt = factories.attempt(one.id, url="http://10.0.0.1:1")
    one = factories.changed(one, attempt=attempt)
    found = workload_out(one, StateDetails(NoNodes()))
    assert "hush" not in found.model_dump_json()
    assert (found.url, found.internal_url, found.variables) == ("/user/a%20b/", None, {"A": "1"})
    assert workload_out(one, StateDetails(NoNodes()), internal=True).internal_url == "http://10.0.0.1:1"


@pytest.mark.parametrize(("state", "url"), [(State.QUEUED, None), (State.STARTING, None), (State.STOPPED, None)])
def test_session_has_a_url_only_while_it_runs(state: State, url: str | None) -> None:
    assert workload_out(factories.workload(state, kind=Kind.SESSION, name="lab"), StateDetails(NoNodes())).url == url


def test_session_url_contains_the_owner_at_the_session_origin() -> None:
    running = factories.workload(State.RUNNING, kind=Kind.SESSION, name="lab", owner="ann")
    assert workload_out(running, STANDING, "https://*.hub.example.org").url == (
        "https://ann.hub.example.org/user/ann/lab/"
    )


def test_holders_of_other_users_show_only_the_owner() -> None:
    held = Holder("w1", "paper-draft", "bob", "session", "gpu-1", Resources(gpu_memory_mib=16 * 1024), None, "commons")
    mine = Holder("w2", "mine", "ann", "job", "gpu-1", Resources(gpu_memory_mib=4 * 1024), 1.0)
    found = explanation_out(
        Explanation("w3", (NoNodes(),), holders=(held, mine)), State.QUEUED, access_of(ANN, ControlSettings())
    )
    assert [(one.workload_id, one.name, one.owner) for one in found.holders] == [
        (None, "", "bob"),
        ("w2", "mine", "ann"),
    ]
    admin = access_of(Principal("root", frozenset({Scope.ADMIN})), ControlSettings())
    assert holder_out(held, admin).name == "paper-draft"


def test_invalid_text_in_output_is_replaced() -> None:
    assert log_line_out(LogLine("\ud800x", 2)).text == "?x"
    assert log_line_out(LogLine("naïve \x1b[0m", 9)).text == "naïve \x1b[0m"


def test_log_end_belongs_to_the_followed_attempt() -> None:
    failed = factories.workload(State.FAILED, attempt=factories.attempt(number=2, state=State.FAILED, exit_code=3))
    assert (log_end_out(failed, 2).exit_code, log_end_out(failed, 1).exit_code) == (3, None)
    assert log_end_out(failed, 1).attempt == 1
