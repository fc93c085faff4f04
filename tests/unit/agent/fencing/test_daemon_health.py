"""When a daemon counts as gone, and when its containers are to be ended without it."""

from commonage.agent.fencing.daemon_health import Answer, DaemonHealth


def test_one_that_is_gone_is_a_fault_at_once_and_fenced_after_a_while() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Answer.ANSWERS, 0)
    assert (daemon_health.fault(1), daemon_health.is_due(1)) == ("", False)
    daemon_health.note(Answer.GONE, 10)
    daemon_health.note(Answer.GONE, 11)
    assert daemon_health.fault(12) == "its Docker daemon is not there, for 2 s now"
    assert not daemon_health.is_due(17.9)
    assert daemon_health.is_due(18)
    daemon_health.note_fenced(done=False)
    assert daemon_health.is_due(18)
    daemon_health.note_fenced(done=True)
    assert not daemon_health.is_due(100)
    daemon_health.note(Answer.ANSWERS, 101)
    assert (daemon_health.fault(101), daemon_health.is_due(101)) == ("", False)
    daemon_health.note(Answer.GONE, 102)  # anew, it counts anew
    assert not daemon_health.is_due(105)
    assert daemon_health.is_due(110)


def test_one_that_is_slow_is_given_more_time() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Answer.SILENT, 0)
    assert daemon_health.fault(5) == ""
    assert daemon_health.fault(12) == "its Docker daemon does not answer, for 12 s now"
    assert not daemon_health.is_due(59)
    assert daemon_health.is_due(60)


def test_one_that_is_started_anew_and_slow_with_it_is_given_more_time() -> None:
    """It listens again: what it left running goes on, and it is about to take it up."""
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 4):
        daemon_health.note(Answer.GONE, at)
    daemon_health.note(Answer.SILENT, 4)
    assert daemon_health.fault(15) == "its Docker daemon does not answer, for 11 s now"
    assert not daemon_health.is_due(63)
    daemon_health.note(Answer.GONE, 63)
    assert not daemon_health.is_due(63)
    assert daemon_health.is_due(64), "over and over it is silent, too"


def test_a_short_silence_is_nothing() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 100, 4):
        daemon_health.note(Answer.SILENT, at)
        daemon_health.note(Answer.ANSWERS, at + 3)
        assert daemon_health.fault(at + 3) == ""
        assert not daemon_health.is_due(at + 3)
