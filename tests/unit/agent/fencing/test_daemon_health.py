"""When a daemon counts as gone, and when its containers are to be ended without it."""

from commonage.agent.fencing.daemon_health import DaemonHealth, Ping
from commonage.domain.reasons.nodes import DaemonNotAnswering, DaemonNotRunning


def test_one_that_is_gone_is_a_fault_at_once_and_fenced_after_a_while() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Ping.ANSWERS, 0)
    assert (daemon_health.fault(1), daemon_health.must_fence(1)) == (None, False)
    daemon_health.note(Ping.GONE, 10)
    daemon_health.note(Ping.GONE, 11)
    assert daemon_health.fault(12) == DaemonNotRunning(silent_s=2)
    assert not daemon_health.must_fence(17.9)
    assert daemon_health.must_fence(18)
    daemon_health.note_fenced(done=False)
    assert daemon_health.must_fence(18)
    daemon_health.note_fenced(done=True)
    assert not daemon_health.must_fence(100)
    daemon_health.note(Ping.ANSWERS, 101)
    assert (daemon_health.fault(101), daemon_health.must_fence(101)) == (None, False)
    daemon_health.note(Ping.GONE, 102)  # anew, it counts anew
    assert not daemon_health.must_fence(105)
    assert daemon_health.must_fence(110)


def test_one_that_is_slow_is_given_more_time() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Ping.SILENT, 0)
    assert daemon_health.fault(5) is None
    assert daemon_health.fault(12) == DaemonNotAnswering(silent_s=12)
    assert not daemon_health.must_fence(59)
    assert daemon_health.must_fence(60)


def test_one_that_is_started_anew_and_slow_with_it_is_given_more_time() -> None:
    """It listens again: what it left running goes on, and it is about to take it up."""
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 4):
        daemon_health.note(Ping.GONE, at)
    daemon_health.note(Ping.SILENT, 4)
    assert daemon_health.fault(15) == DaemonNotAnswering(silent_s=11)
    assert not daemon_health.must_fence(63)
    daemon_health.note(Ping.GONE, 63)
    assert not daemon_health.must_fence(63)
    assert daemon_health.must_fence(64), "over and over it is silent, too"


def test_a_short_silence_is_nothing() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 100, 4):
        daemon_health.note(Ping.SILENT, at)
        daemon_health.note(Ping.ANSWERS, at + 3)
        assert daemon_health.fault(at + 3) is None
        assert not daemon_health.must_fence(at + 3)
