"""Submissions and queries, parsed from messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from commonage.api.routes.workloads import MAX_VRAM_MIB, parse_filter, parse_submission
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest
from commonage.domain.workloads import Condition, Dependency, Kind, RetryPolicy, State
from commonage.ports.store import Filter
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
