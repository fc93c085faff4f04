"""What a follower shows: the log of every attempt, whatever happened between two looks, and each thing once."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from commonage.cli.follow import Teller, follow
from commonage.sdk import Client
from commonage.wire.workloads import AttemptOut, LogLineOut, ReasonOut, WorkloadOut


def why(message: str) -> ReasonOut:
    return ReasonOut(code="Any", params={}, message=message)


def seen(state: str, attempts: int) -> WorkloadOut:
    """A workload as one look at it finds it; what no follower reads is left out."""
    made: Any = WorkloadOut.model_construct
    return cast(
        WorkloadOut,
        made(
            id="1m7ytqacd6d5a",
            state=state,
            attempts=attempts,
            reason=why("Because."),
            notes=[],
            position=None,
            exit_code=None,
        ),
    )


class Looks:
    """A client that finds one thing after the other; an attempt's log is its number."""

    def __init__(self, looks: Sequence[WorkloadOut]) -> None:
        self.looks = list(looks)

    def workload(self, _id: str) -> WorkloadOut:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def attempts(self, _id: str) -> list[AttemptOut]:
        made: Any = AttemptOut.model_construct
        ends = [why("Preempted."), why("Exit code 3.")]
        states = ["stopped", "failed"]
        return [made(number=n, state=states[n - 1], ended_at=1.0, reason=ends[n - 1]) for n in (1, 2)]

    def logs(self, _id: str, *, attempt: int, **_: Any) -> Iterator[LogLineOut]:
        yield LogLineOut(text=f"attempt {attempt} speaks", offset=1)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        # The first attempt was over before the first look.
        ([seen("queued", 0), seen("held", 1), seen("starting", 2), seen("succeeded", 2)], [1, 2]),
        ([seen("queued", 0), seen("running", 1), seen("held", 1), seen("succeeded", 3)], [1, 2, 3]),
        ([seen("queued", 0), seen("succeeded", 1)], [1]),
        ([seen("queued", 0), seen("stopped", 0)], []),
        # Who attaches sees the present attempt, not those before.
        ([seen("running", 3), seen("succeeded", 3)], [3]),
        ([seen("held", 2), seen("succeeded", 3)], [2, 3]),
    ],
)
def test_every_attempt_is_heard_once(
    capsys: pytest.CaptureFixture[str], looks: list[WorkloadOut], said: list[int]
) -> None:
    follow(cast(Client, Looks(looks[1:])), looks[0])
    assert capsys.readouterr().out.splitlines() == [f"attempt {number} speaks" for number in said]


def test_it_is_said_why_a_try_ended_that_was_not_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    """Preempted, it goes back to the queue; a moment later its reason there is why it waits."""
    looks = [seen("running", 1), seen("queued", 1), seen("running", 2), seen("held", 2), seen("succeeded", 3)]
    follow(cast(Client, Looks(looks[1:])), looks[0])
    assert [line for line in capsys.readouterr().err.splitlines() if "attempt" in line] == [
        "commonage: attempt 1 stopped: Preempted.",
        "commonage: attempt 2 failed: Exit code 3.",
    ]


def test_nothing_moves_while_ctrl_c_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    moving: list[bool] = []
    done: list[bool] = []

    def asking(*_: object) -> int:
        moving.append(not done)
        return 130

    class Interrupted(Looks):
        def workload(self, _id: str) -> WorkloadOut:
            raise KeyboardInterrupt

    monkeypatch.setattr("commonage.cli.follow._interrupted", asking)
    monkeypatch.setattr(Teller, "done", lambda _self: done.append(True))
    assert follow(cast(Client, Interrupted([])), seen("queued", 0)) == 130
    assert moving == [False]


def test_what_was_just_said_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    say = Teller()
    say.status("3 succeeded")
    say.line("3 succeeded")
    assert capsys.readouterr().err == "commonage: 3 succeeded\n"
