"""From the wire to control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.api import decode
from commonage.domain.errors import InvalidInput
from commonage.domain.requests import GpuRequest
from commonage.domain.workloads import Condition, Dependency, Kind, RetryPolicy, State
from commonage.ports.store import Filter
from commonage.wire.queries import WorkloadsQuery
from commonage.wire.workloads import DependencyIn, SubmitIn


def test_everything_that_can_be_asked_arrives() -> None:
    ask = SubmitIn(
        kind="service", name="n", environment="e", command=["a", "b"], cpus="1500m", memory="6GiB", gpus="A100:6GiB",
        time="1h30m", priority=-3, grace="0", retries=2, backoff="1m",
        depends_on=[DependencyIn(id="w", condition="afterany")], array=4, variables={"A": "1"}, secrets={"B": "2"},
        bundle="0" * 64, tenant="t", key="k", owner="o",
    )  # fmt: skip
    made = decode.submission(ask)
    assert (made.kind, made.name, made.environment, made.command) == (Kind.SERVICE, "n", "e", ("a", "b"))
    assert (made.cpus_milli, made.memory_mib, made.gpu) == (1500, 6144, GpuRequest(vram_mib=6144, model="A100"))
    assert (made.time_limit_s, made.priority, made.grace_s, made.retry) == (5400, -3, 0, RetryPolicy(2, 60.0))
    assert made.depends_on == (Dependency("w", Condition.AFTER_ANY),)
    assert (made.array_size, made.variables, made.secrets) == (4, (("A", "1"),), (("B", "2"),))
    assert (made.bundle, made.tenant, made.key, made.owner) == ("0" * 64, "t", "k", "o")


def test_what_is_not_asked_is_left_to_the_installation() -> None:
    made = decode.submission(SubmitIn())
    assert (made.kind, made.cpus_milli, made.memory_mib, made.gpu, made.environment) == (
        Kind.JOB,
        None,
        None,
        None,
        None,
    )
    assert (made.time_limit_s, made.grace_s, made.retry, made.array_size) == (None, 10, RetryPolicy(), 0)


@pytest.mark.parametrize("field", ["memory", "gpus"])
def test_more_than_any_store_can_hold_is_refused_here(field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode.submission(SubmitIn(**{field: "999999999999PiB"}))
    assert (caught.value.field, caught.value.problem_code) == (field, f"invalid-{field}")


@given(
    cpus=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
    memory=st.none() | st.text(max_size=10) | st.integers(),
    gpus=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
    time=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
    grace=st.none() | st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_comes_is_understood_or_refused(cpus, memory, gpus, time, grace) -> None:
    ask = SubmitIn.model_construct(**{**SubmitIn().__dict__, "cpus": cpus, "memory": memory, "gpus": gpus,
                                      "time": time, "grace": grace})  # fmt: skip
    try:
        made = decode.submission(ask)
    except InvalidInput as refused:
        assert refused.field in {"cpus", "memory", "gpus", "time", "grace"}
        return
    assert made.cpus_milli is None or made.cpus_milli > 0
    assert made.memory_mib is None or 0 < made.memory_mib <= decode.MAX_MEMORY_MIB
    assert made.time_limit_s is None or made.time_limit_s > 0
    assert made.grace_s >= 0


def test_a_list_query_becomes_a_filter() -> None:
    assert decode.which(WorkloadsQuery()) == Filter()
    query = WorkloadsQuery(
        owner="o", kind="job", state=["lost", "failed"], node="n", environment="e", array="a", text="t"
    )
    assert decode.which(query) == Filter(
        owner="o", kinds=(Kind.JOB,), states=frozenset({State.LOST, State.FAILED}), node="n", environment="e",
        array_id="a", text="t",
    )  # fmt: skip
