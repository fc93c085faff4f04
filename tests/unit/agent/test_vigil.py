"""When a daemon counts as gone, and when its containers are to be ended without it."""

from commonage.agent.vigil import Answer, Vigil


def test_one_that_is_gone_is_a_fault_at_once_and_fenced_after_a_while() -> None:
    vigil = Vigil(fence_after_s=8, silent_after_s=60)
    vigil.note(Answer.ANSWERS, 0)
    assert (vigil.fault(1), vigil.is_due(1)) == ("", False)
    vigil.note(Answer.GONE, 10)
    vigil.note(Answer.GONE, 11)
    assert vigil.fault(12) == "its Docker daemon is not there, for 2 s now"
    assert not vigil.is_due(17.9)
    assert vigil.is_due(18)
    vigil.note_fenced(done=False)
    assert vigil.is_due(18)
    vigil.note_fenced(done=True)
    assert not vigil.is_due(100)
    vigil.note(Answer.ANSWERS, 101)
    assert (vigil.fault(101), vigil.is_due(101)) == ("", False)
    vigil.note(Answer.GONE, 102)  # anew, it counts anew
    assert not vigil.is_due(105)
    assert vigil.is_due(110)


def test_one_that_is_slow_is_given_more_time() -> None:
    vigil = Vigil(fence_after_s=8, silent_after_s=60)
    vigil.note(Answer.SILENT, 0)
    assert vigil.fault(5) == ""
    assert vigil.fault(12) == "its Docker daemon does not answer, for 12 s now"
    assert not vigil.is_due(59)
    assert vigil.is_due(60)


def test_one_that_is_started_anew_and_slow_with_it_is_given_more_time() -> None:
    """It listens again: what it left running goes on, and it is about to take it up."""
    vigil = Vigil(fence_after_s=8, silent_after_s=60)
    for at in range(0, 4):
        vigil.note(Answer.GONE, at)
    vigil.note(Answer.SILENT, 4)
    assert vigil.fault(15) == "its Docker daemon does not answer, for 11 s now"
    assert not vigil.is_due(63)
    vigil.note(Answer.GONE, 63)
    assert not vigil.is_due(63)
    assert vigil.is_due(64), "over and over it is silent, too"


def test_a_short_silence_is_nothing() -> None:
    vigil = Vigil(fence_after_s=8, silent_after_s=60)
    for at in range(0, 100, 4):
        vigil.note(Answer.SILENT, at)
        vigil.note(Answer.ANSWERS, at + 3)
        assert vigil.fault(at + 3) == ""
        assert not vigil.is_due(at + 3)
