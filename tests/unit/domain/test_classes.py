"""The seats that a teacher sees, and the times in which a class holds its room."""

import pytest

from commonage.domain.classes import (
    MAX_ATTEMPTS,
    STARTS_WITHIN_S,
    USED_FOR_S,
    AtEnd,
    Class,
    ClassMeeting,
    Consent,
    Observed,
    SeatState,
    seat_of,
)
from commonage.domain.reasons.attempts import Completed, NodeLost, OutOfMemory
from commonage.domain.reasons.classes import StudentUnknown
from commonage.domain.requests import Request
from commonage.domain.workloads import State

NOW = 10_000.0


def seen(state: State | None, since: float = NOW, **fields: object) -> SeatState:
    return seat_of(Observed(state, since, **fields), NOW)[0]  # type: ignore[arg-type]  # fields of Observed


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (seen(None), SeatState.NOT_STARTED),
        (seen(None, reason=StudentUnknown(user="ada")), SeatState.STUCK),
        (seen(State.QUEUED), SeatState.NOT_STARTED),
        (seen(State.STARTING, NOW - STARTS_WITHIN_S - 1), SeatState.STUCK),
        (seen(State.RUNNING), SeatState.STARTED),
        (seen(State.RUNNING, NOW - 5000), SeatState.STARTED),
        (seen(State.RUNNING, used_at=NOW - USED_FOR_S + 1), SeatState.WORKING),
        (seen(State.RUNNING, used_at=NOW - USED_FOR_S - 1), SeatState.STUCK),
        (seen(State.RUNNING, used_at=NOW, attempts=MAX_ATTEMPTS + 1), SeatState.STUCK),
        (seen(State.FAILED, reason=OutOfMemory()), SeatState.OUT_OF_MEMORY),
        (seen(State.LOST, reason=NodeLost(node="gpu-1")), SeatState.STUCK),
        (seen(State.SUCCEEDED, reason=Completed()), SeatState.NOT_STARTED),
    ],
)
def test_a_seat_shows_what_its_session_does(state: SeatState, expected: SeatState) -> None:
    assert state is expected


def make(**fields: object) -> Class:
    times = ((1000.0, 2000.0), (5000.0, 6000.0))
    return Class("ml", "course", 5, Request(100, 100), times, ahead_s=100, grace_s=60, **fields)  # type: ignore[arg-type]


def test_a_meeting_is_on_from_the_first_start_until_the_sessions_stop() -> None:
    one = make()
    assert [one.meeting(at) for at in (899, 900, 2059, 2060)] == [None, (1000, 2000), (1000, 2000), None]
    assert list(one.places(2000)) == [(900, 2060), (4900, 6060)]
    assert make(at_end=AtEnd.KEEP).meeting(2001) is None


def test_the_newest_answer_of_a_student_counts_for_each_teacher() -> None:
    meeting = ClassMeeting("ml@1", "ml", 1.0, 2.0)
    for given in (None, True, False):
        meeting = meeting.with_consent(Consent("ada", "grace", given, NOW))
    meeting = meeting.with_consent(Consent("ada", "alan", True, NOW))
    answers = [meeting.consent("ada", teacher) for teacher in ("grace", "alan", "kurt")]
    assert [None if one is None else one.given for one in answers] == [False, True, None]
