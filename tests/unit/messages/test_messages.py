"""The sentences of reasons. Only here are texts asserted; everywhere else it is codes and parameters."""

import json
import re
import types
import typing
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from string import Formatter
from typing import Any

import pytest

from commonage import messages
from commonage.domain.codec import from_json, to_json
from commonage.domain.errors import Unschedulable
from commonage.domain.explanations import Ahead, Confidence, Explanation, Holder, JobsAhead, Precedence
from commonage.domain.reasons import REASONS, Reason, attempts, notes, refusals, waiting
from commonage.domain.reasons.waiting import InQueue, Resource, Resources
from commonage.messages import explanations
from commonage.messages.reference import reference

GIB = 1024
KINDS = sorted(REASONS.values(), key=lambda kind: kind.__name__)
THERE = {"node": "n1", "nodes": 3, "total": 8}


def sample(kind: Any, *, rich: bool) -> Any:
    """A value of this type: with all that may be there, or with as little as there can be."""
    if kind is Reason:
        return InQueue()
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return sample(next(one for one in arguments if one is not type(None)), rich=rich) if rich else None
    if origin is tuple and arguments[-1] is ...:
        return (sample(arguments[0], rich=rich),) * (4 if rich else 1)
    if origin is tuple:
        return tuple(sample(one, rich=rich) for one in arguments)
    if issubclass(kind, Enum):
        return list(kind)[-1 if rich else 0]
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        wanted = [one for one in fields(kind) if rich or one.default is MISSING or one.name == "node"]
        return kind(**{one.name: sample(hints[one.name], rich=rich) for one in wanted})
    return {str: "Some", int: 5000 if rich else 1, float: 90.0 if rich else 0.0, bool: rich}[kind]


def test_every_code_has_a_text_and_every_text_a_code() -> None:
    assert set(messages.TEXTS) == set(KINDS)


def test_texts_name_parameters_that_there_are() -> None:
    for kind, template in messages.TEXTS.items():
        if isinstance(template, str):
            names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
            assert names <= set(kind.__dataclass_fields__), kind.__name__


def test_every_code_says_what_it_means() -> None:
    for kind in KINDS:
        assert kind.__doc__ and kind.__doc__.rstrip().endswith("."), kind.__name__
        assert not kind.__doc__.startswith(f"{kind.__name__}("), kind.__name__


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_text_is_made_of_whole_sentences(kind: type[Reason], rich: bool) -> None:
    said = messages.text(sample(kind, rich=rich))
    assert said[:1] == said[:1].upper()
    assert said.endswith((".", "!", "?"))
    assert not re.search(r"  |\.\.|\. [a-z]|None|\w+\(\w+=", said), said


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_any_parameters_have_a_text(kind: type[Reason], rich: bool) -> None:
    """Sites report reasons, and their texts are shown at the start of the server and on pages of all tenants."""
    reason: Any = sample(kind, rich=rich)
    values = {field.name: getattr(reason, field.name) for field in fields(kind)}
    numbers = {name: type(value) for name, value in values.items() if type(value) in (int, float)}
    for extreme in (-(2**53), 2**53):
        assert messages.text(replace(reason, **{name: number(extreme) for name, number in numbers.items()}))
    assert messages.text(replace(reason, **{name: () for name, value in values.items() if isinstance(value, tuple)}))


@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_written_down_is_read_again(kind: type[Reason], rich: bool) -> None:
    reason = sample(kind, rich=rich)
    written = json.loads(json.dumps(to_json(reason)))
    assert written["code"] == kind.__name__
    assert from_json(Reason, written) == reason


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            waiting.InsufficientGpuMemory(
                node="gpu-2", gpu="0", model=None, requested_mib=12 * GIB, free_mib=8 * GIB, total_mib=24 * GIB
            ),
            "Not enough GPU memory: 12 GiB requested, 8 GiB of 24 GiB free on GPU 0 of gpu-2.",
        ),
        (
            waiting.InsufficientGpuMemory(
                **THERE, gpu="0", model="A100", requested_mib=12 * GIB, free_mib=8 * GIB, total_mib=24 * GIB
            ),
            "Not enough GPU memory of A100 GPUs on 3 of 8 nodes: 12 GiB requested, at most 8 GiB of 24 GiB free on "
            "GPU 0 of n1.",
        ),
        (
            waiting.InsufficientGpus(node="n", model=None, requested=2, free=1, present=2),
            "Not enough free GPUs: 2 requested, 1 of 2 wholly free on n.",
        ),
        (
            waiting.InsufficientCpu(node="n", requested_cpus_milli=9000, free_cpus_milli=1500, total_cpus_milli=8000),
            "Not enough CPUs: 9 requested, 1.5 of 8 free on n.",
        ),
        (waiting.NodeDraining(node="a", by="root"), "Node a is draining (drained by root)."),
        (waiting.NodeDraining(**THERE, by=""), "3 of 8 nodes are draining: n1 and 2 more."),
        (
            waiting.UserQuotaExceeded(tenant="course", user="eve", resource=Resource.GPU_MEMORY, used=0, limit=8 * GIB),
            "Quota exceeded: eve uses 0 MiB of the 8 GiB of GPU memory that one member of tenant course may use. It "
            "starts when other work of eve ends.",
        ),
        (
            waiting.QuotaExceeded(tenant="a", resource=Resource.GPU, used=2000, quota=2000, borrowing=None, unused=500),
            "Quota exceeded: tenant a uses 2 of its quota of 2 GPUs, and may borrow that other tenants do not use: "
            "0.5 unused. It starts when work of the tenant ends or other tenants use less.",
        ),
        (
            waiting.ReservedForOthers(
                node="n",
                nodes=2,
                free=Resources(gpu_memory_mib=8 * GIB),
                tenant="course",
                title="lab",
                ends_in_s=1800.0,
            ),
            "8 GiB of GPU memory on n and 1 more node free, but reserved for course (lab); the reservation ends in "
            "30 min.",
        ),
        (waiting.NoNodeLargeEnough(), "Start unknown: no schedulable node is large enough."),
        (
            waiting.RetryScheduled(
                retry=1, retries=3, pause_s=10.0, attempt=1, state="failed", cause=attempts.ExitCode(exit_code=3)
            ),
            "Attempt 1 failed. Exit code 3. Retry 1 of 3 in 10 s.",
        ),
        (attempts.Stopping(cause=attempts.StoppedBy(by="ann", comment="enough")), "Stopping. Stopped by ann: enough."),
        (
            attempts.PullingImage(image="r/torch@sha256:1", pulled_bytes=12_000_000, total_bytes=80_000_000),
            "Pulling image r/torch: 12 of 80 MB.",
        ),
        (
            attempts.DependencyFailed(workload_id="7k2v", name="fit", condition="afterok", state="timed_out"),
            "It depends on 7k2v (fit): it starts if that succeeds, and that timed out.",
        ),
        (
            notes.UnattributedGpuMemory(
                gpu="0", model="A30", used_mib=2 * GIB, processes=(notes.ProcessInfo(4711, "python3"),), more=1
            ),
            "GPU 0 (A30): 2 GiB of VRAM are held by python3 (process 4711), 1 more, which no workload started.",
        ),
        (notes.HomeUsed(used_mib=2 * GIB, quota_mib=None), "Your home uses 2 GiB."),
        (
            notes.HomeUsed(used_mib=GIB, quota_mib=2 * GIB),
            "Your home uses 1 GiB; the limit is 2 GiB (measured, not enforced).",
        ),
        (
            notes.HomeUsed(used_mib=3 * GIB, quota_mib=2 * GIB),
            "Your home uses 3 GiB, the limit is 2 GiB (measured, not enforced). Delete files that you do not need.",
        ),
        (refusals.GpuModelNotFound(model="H100", models=("A30",)), "No GPU of the model H100 here. Available: A30."),
        (
            refusals.TooMuchGpuMemory(requested_mib=30 * GIB, max_mib=24 * GIB),
            "Not enough GPU memory: 30 GiB requested, and the largest GPU has 24 GiB. Request 24 GiB or less.",
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Reason) else "",
)
def test_some_texts(reason: Reason, text: str) -> None:
    assert messages.text(reason) == text


def test_an_error_of_a_reason_says_what_the_reason_says() -> None:
    assert messages.of_error(Unschedulable(refusals.NoGpus())) == messages.text(refusals.NoGpus())
    assert messages.of_error(Unschedulable("as it is")) == "as it is"


def test_the_summary_of_one_that_waits() -> None:
    found = Explanation(
        "w",
        (waiting.NoNodes(), waiting.InQueue()),
        at=100.0,
        position=2,
        queue_length=3,
        holders=(Holder("v", "s", "alice", "session", "n", Resources(gpu_memory_mib=16 * GIB)),),
        expected_start_at=700.0,
        confidence=Confidence.LIMITS,
    )
    assert explanations.summary(found) == (
        "Position 2 of 3 in the queue. No node has reported yet. A session of alice holds 16 GiB of GPU memory. "
        "Expected to start within 10 min."
    )


def test_the_summary_of_one_that_does_not_wait() -> None:
    assert explanations.summary(Explanation("w", (attempts.ExitCode(exit_code=3),))) == "Exit code 3."
    now = Explanation(None, (waiting.StartsNow(node="n", gpus="1 whole GPU"),), startable_now=True, position=1)
    assert explanations.summary(now) == "Starts now on n with 1 whole GPU."


def test_who_is_ahead() -> None:
    named = (Ahead("job", "ann", "lab"), Ahead("session", "bob", "lab"))
    assert explanations.ahead(JobsAhead(Precedence.PRIORITY, 3, named)) == (
        "3 with a higher priority (job of ann, session of bob, …)"
    )
    assert (
        explanations.ahead(JobsAhead(Precedence.OLDER, 1, (Ahead(),)))
        == "1 waiting longer (workload of another tenant)"
    )
    assert explanations.ahead(JobsAhead(Precedence.OWN, 1, named[:1])) == "1 of the same owner"


def test_the_reference_lists_every_code_once() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE)
    assert sorted(listed) == [kind.__name__ for kind in KINDS]


def test_a_refusal_on_the_platform_names_the_rights_of_an_admins_token() -> None:
    missing = {"user": "root", "permission": "manage-platform", "roles": ("admin",)}
    assert messages.text(refusals.PermissionMissing(**missing, tenant="")).endswith("use a token with admin rights.")
    assert messages.text(refusals.PermissionMissing(**missing, tenant="lab")).endswith("Ask an admin for one of them.")
