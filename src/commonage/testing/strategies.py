"""Random domain objects for hypothesis. Used by the contract suites; plain ones are in `factories`.

Text is limited to what a database can hold: no NUL, no lone surrogates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from commonage.domain.images import Image, Kernel, Provenance, Removal, SourceFile
from commonage.domain.nodes import Allocation, Device, Isolation, Node, NodeReport, NodeState, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import ExitCode, StartFailed
from commonage.domain.reasons.waiting import InQueue, RetryScheduled
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.workloads import (
    Attempt,
    Condition,
    Dependency,
    Kind,
    RetryPolicy,
    Spec,
    State,
    StopCause,
    StopRequest,
    Workload,
    attempt_id,
)
from commonage.testing.factories import workload_id

_IDS = st.builds(workload_id)


def texts(**limits: Any) -> st.SearchStrategy[str]:
    """Text of any script; `limits` are `min_size` and `max_size`."""
    limits.setdefault("max_size", 20)
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), **limits)


def instants() -> st.SearchStrategy[float]:
    """Unix seconds within this century, with their fractions."""
    return st.floats(0, 4e9, allow_nan=False)


def amounts(most: int = 2**40) -> st.SearchStrategy[int]:
    return st.integers(0, most)


def pairs() -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    return st.lists(st.tuples(texts(), texts()), max_size=3).map(tuple)


def reasons() -> st.SearchStrategy[Reason]:
    """Some codes: without parameters, with a program's text, and with another reason as cause."""
    plain = st.just(InQueue()) | st.builds(StartFailed, error=texts(max_size=200))
    retry = st.builds(
        RetryScheduled,
        retry=amounts(9),
        retries=amounts(9),
        pause_s=instants(),
        attempt=amounts(9),
        state=texts(),
        cause=plain,
    )
    return plain | st.builds(ExitCode, exit_code=st.integers(1, 255)) | retry


def gpu_requests() -> st.SearchStrategy[GpuRequest]:
    """Whole GPUs, a fraction of one, or VRAM."""
    model = st.none() | texts(min_size=1)
    return st.one_of(
        st.builds(GpuRequest, whole=st.integers(1, 1024), model=model),
        st.builds(GpuRequest, fraction_milli=st.integers(1, 999), model=model),
        st.builds(GpuRequest, vram_mib=st.integers(1, 2**30), model=model),
    )


def requests() -> st.SearchStrategy[Request]:
    return st.builds(Request, amounts(), amounts(), st.none() | gpu_requests(), pairs(), st.booleans())


def specs() -> st.SearchStrategy[Spec]:
    """Any spec outside arrays and without a client key, which must be unique."""
    return st.builds(
        Spec,
        kind=st.sampled_from(Kind),
        name=texts(),
        owner=texts(min_size=1),
        tenant=texts(min_size=1),
        environment=texts(min_size=1),
        command=st.lists(texts(), max_size=3).map(tuple),
        request=requests(),
        variables=pairs(),
        secrets=pairs(),
        priority=st.integers(-(2**31), 2**31),
        time_limit_s=st.none() | st.integers(1, 2**31),
        grace_s=st.integers(0, 3600),
        retry=st.builds(RetryPolicy, st.integers(0, 100), st.floats(0, 1e6)),
        depends_on=st.lists(st.builds(Dependency, _IDS, st.sampled_from(Condition)), max_size=2).map(tuple),
        bundle=st.none() | texts(),
        array_id=st.none() | _IDS,
        array_size=st.integers(0, 2**31 - 1),
        preemptible=st.booleans(),
        gang=st.booleans(),
        requeue=st.booleans(),
    )


def shares() -> st.SearchStrategy[Share]:
    return st.builds(
        Share,
        device_uuid=texts(min_size=1),
        device_index=st.integers(0, 64),
        model=texts(),
        memory_mib=amounts(2**30),
        compute_milli=st.integers(0, 1000),
        whole=st.booleans(),
        device_memory_mib=amounts(2**30),
        simulated=st.booleans(),
        isolation=st.sampled_from(Isolation),
    )


@st.composite
def attempts_of(draw: st.DrawFn, workload: str) -> Attempt:
    number = draw(st.integers(1, 1000))
    name = attempt_id(workload, number)
    held = draw(st.lists(shares(), max_size=3).map(tuple))
    allocation = Allocation(
        name, draw(texts(min_size=1)), draw(texts(min_size=1)), draw(amounts()), draw(amounts()), held, draw(instants())
    )
    return Attempt(
        id=name,
        workload_id=workload,
        number=number,
        state=draw(st.sampled_from([state for state in State if not state.waits])),
        allocation=allocation,
        started_at=draw(st.none() | instants()),
        ended_at=draw(st.none() | instants()),
        exit_code=draw(st.none() | st.integers(-255, 255)),
        reason=draw(st.none() | reasons()),
        url=draw(st.none() | texts()),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any workload in any state, with a new id, at version 1."""
    name = workload_id()
    fresh = Workload(
        id=name,
        spec=draw(specs()),
        state=State.QUEUED,
        submitted_at=draw(instants()),
        since=0,
        array_index=draw(st.none() | st.integers(0, 2**31 - 1)),
    )
    return draw(moved_on(fresh))


@st.composite
def moved_on(draw: st.DrawFn, before: Workload) -> Workload:
    """The same workload in any state that may follow, its version unchanged. A terminal state never changes."""
    states = [State.LOST, *(state for state in State if not before.state.is_terminal or state.is_terminal)]
    stops = st.builds(StopRequest, texts(), instants(), st.sampled_from(StopCause), st.none() | reasons())
    return replace(
        before,
        state=draw(st.sampled_from(states)),
        since=draw(instants()),
        reason=draw(reasons()),
        stop=draw(st.none() | stops),
        attempt=draw(st.none() | attempts_of(before.id)),
        not_before=draw(st.none() | instants()),
        warned=draw(st.booleans()),
        retried=draw(st.integers(0, 100)),
        losses=draw(st.integers(0, 100)),
        kept_until=draw(st.none() | instants()),
        idle_warned_at=draw(st.none() | instants()),
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[Workload, Workload]:
    """A workload, and the same one a version later."""
    first = draw(workloads())
    return first, replace(draw(moved_on(first)), version=2)


def devices() -> st.SearchStrategy[Device]:
    return st.builds(
        Device,
        uuid=texts(min_size=1),
        index=st.integers(0, 64),
        model=texts(),
        memory_mib=amounts(2**30),
        simulated=st.booleans(),
        isolation=st.sampled_from(Isolation),
        faults=st.lists(reasons(), max_size=2).map(tuple),
        driver=texts(),
        cuda=texts(),
        compute_capability=texts(),
        pci=texts(),
        numa=st.none() | st.integers(0, 8),
        slots=st.integers(0, 8),
        mig_profile=texts(),
        parent_uuid=st.none() | texts(min_size=1),
        parent_memory_mib=amounts(2**30),
        peers=st.lists(st.tuples(texts(), st.integers(1, 36)), max_size=2).map(tuple),
        notices=st.lists(reasons(), max_size=2).map(tuple),
        unavailable=st.lists(st.tuples(st.sampled_from(Isolation), reasons()), max_size=2).map(tuple),
    )


def nodes() -> st.SearchStrategy[Node]:
    report = st.builds(
        NodeReport,
        name=texts(min_size=1),
        cpus_milli=amounts(),
        memory_mib=amounts(),
        devices=st.lists(devices(), max_size=3).map(tuple),
        disk_free_mib=st.none() | amounts(),
        labels=pairs(),
        faults=st.lists(reasons(), max_size=2).map(tuple),
        disk_pressure=st.none() | reasons(),
        gone=st.booleans(),
    )
    return st.builds(
        Node,
        name=texts(min_size=1),
        site=texts(min_size=1),
        engine=texts(),
        state=st.sampled_from(NodeState),
        report=report,
        observed_at=instants(),
        drained_by=texts(),
        reasons=st.lists(reasons(), max_size=2).map(tuple),
        leave_by=st.none() | instants(),
    )


def images() -> st.SearchStrategy[Image]:
    """Images of the catalogue, including removed ones."""
    digests = st.just("sha256:" + "ab" * 32)
    files = st.lists(st.builds(SourceFile, texts(), digests), max_size=2).map(tuple)
    made = st.builds(Provenance, texts(), st.none() | instants(), texts(), texts(), texts(), files, texts())
    return st.builds(
        Image,
        name=texts(min_size=1),
        tenant=st.none() | texts(),
        reference=digests,
        by=texts(),
        at=instants(),
        title=texts(),
        size_bytes=st.none() | amounts(),
        kinds=st.lists(st.sampled_from(Kind), max_size=3).map(tuple),
        kernels=st.lists(st.builds(Kernel, texts(), texts(), texts()), max_size=2).map(tuple),
        variables=pairs(),
        needs_gpu=st.booleans(),
        min_vram_mib=amounts(),
        provenance=made,
        removed=st.none() | st.builds(Removal, texts(), instants()),
    )
