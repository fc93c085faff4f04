"""`follow` shows the log of every attempt once, whatever happens between two requests."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from commonage.cli.workloads.follow import StatusLine, follow
from commonage.sdk import Client
from commonage.wire.events import LogLineOut
from commonage.wire.reasons import ReasonOut
from commonage.wire.workloads import AttemptOut, WorkloadOut


def reason(message: str) -> ReasonOut:
    return ReasonOut(code="Any", params={}, message=message)


def workload_in(state: str, attempts: int) -> WorkloadOut:
    """A workload in this state, with the fields that `follow` reads."""
    make: Any = WorkloadOut.model_construct
    fields = {"id": "1m7ytqacd6d5a", "reason": reason("Because."), "notes": [], "position": None, "exit_code": None}
    return cast(WorkloadOut, make(kind="job", state=state, attempts=attempts, **fields))


def followed(*answers: tuple[str, int]) -> int:
    """The exit code of following a workload through these states and numbers of attempts."""
    first, *later = (workload_in(state, attempts) for state, attempts in answers)
    return follow(cast(Client, FakeClient(later)), first)


class FakeClient:
    """Returns one workload after the other. The log of an attempt is its number."""

    def __init__(self, answers: Sequence[WorkloadOut]) -> None:
        self.answers = list(answers)

    def workload(self, _id: str) -> WorkloadOut:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def attempts(self, _id: str) -> list[AttemptOut]:
        made: Any = AttemptOut.model_construct
        ends = [reason("Preempted."), reason("Exit code 3.")]
        states = ["stopped", "failed"]
        return [made(number=n, state=states[n - 1], ended_at=1.0, reason=ends[n - 1]) for n in (1, 2)]

    def logs(self, _id: str, *, attempt: int, **_: Any) -> Iterator[LogLineOut]:
        yield LogLineOut(text=f"log of attempt {attempt}", offset=1)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)


@pytest.mark.parametrize(
    ("answers", "logs"),
    [
        # The first attempt ended before the first request.
        ([("queued", 0), ("held", 1), ("starting", 2), ("succeeded", 2)], [1, 2]),
        ([("queued", 0), ("running", 1), ("held", 1), ("succeeded", 3)], [1, 2, 3]),
        ([("queued", 0), ("succeeded", 1)], [1]),
        ([("queued", 0), ("stopped", 0)], []),
        # `attach` shows the present attempt, not earlier ones.
        ([("running", 3), ("succeeded", 3)], [3]),
        ([("held", 2), ("succeeded", 3)], [2, 3]),
    ],
)
def test_log_of_every_attempt_is_shown_once(
    capsys: pytest.CaptureFixture[str], answers: list[tuple[str, int]], logs: list[int]
) -> None:
    followed(*answers)
    assert capsys.readouterr().out.splitlines() == [f"log of attempt {number}" for number in logs]


def test_end_of_earlier_attempts_is_reported_with_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """A preempted workload is requeued, and then has the reason for which it waits."""
    followed(("running", 1), ("queued", 1), ("running", 2), ("held", 2), ("succeeded", 3))
    assert [line for line in capsys.readouterr().err.splitlines() if "attempt" in line] == [
        "commonage: attempt 1 stopped: Preempted.",
        "commonage: attempt 2 failed: Exit code 3.",
    ]


def test_status_line_is_cleared_before_ctrl_c_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []
    cleared: list[bool] = []

    def asking(*_: object) -> int:
        shown.append(not cleared)
        return 130

    class Interrupted(FakeClient):
        def workload(self, _id: str) -> WorkloadOut:
            raise KeyboardInterrupt

    monkeypatch.setattr("commonage.cli.workloads.follow._interrupted", asking)
    monkeypatch.setattr(StatusLine, "clear", lambda _self: cleared.append(True))
    assert follow(cast(Client, Interrupted([])), workload_in("queued", 0)) == 130
    assert shown == [False]


def test_line_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    status = StatusLine()
    status.update("3 succeeded")
    status.print("3 succeeded")
    assert capsys.readouterr().err == "commonage: 3 succeeded\n"
