"""SIGTERM ends a program where it may be interrupted, and never elsewhere."""

import contextlib
import os
import signal

import pytest

from commonage.server.doctor.gpu_probes import Termination

ENDED = 128 + signal.SIGTERM


def ask_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_ends_at_once_where_it_may_be_interrupted() -> None:
    termination = Termination()
    with pytest.raises(SystemExit) as ended, termination.watched(), termination.interruptible():
        ask_to_end()
        pytest.fail("the program went on")
    assert ended.value.code == ENDED


def test_finishes_other_steps_and_ends_at_the_next_place_that_may_be_interrupted() -> None:
    termination, done = Termination(), []
    with pytest.raises(SystemExit) as ended, termination.watched():
        ask_to_end()
        done.append("applied")
        with termination.interruptible():
            done.append("waited")
    assert ended.value.code == ENDED
    assert done == ["applied"]


def test_releases_everything_though_it_is_asked_again() -> None:
    termination, done = Termination(), []
    with pytest.raises(SystemExit), termination.watched():
        try:
            with termination.interruptible():
                ask_to_end()
        finally:
            ask_to_end()
            done.append("released")
    assert done == ["released"]


def test_ends_also_when_the_exception_was_lost_on_its_way() -> None:
    termination = Termination()
    lost = contextlib.suppress(SystemExit)
    with pytest.raises(SystemExit) as ended, termination.watched(), lost, termination.interruptible():
        ask_to_end()
    assert ended.value.code == ENDED


def test_ends_after_a_last_step_that_may_not_be_interrupted() -> None:
    with pytest.raises(SystemExit) as ended, Termination().watched():
        ask_to_end()
    assert ended.value.code == ENDED


def test_puts_the_earlier_handler_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Termination().watched():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
