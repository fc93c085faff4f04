"""SIGTERM ends a program between its steps, never within one."""

import contextlib
import os
import signal

import pytest

from commonage.server.termination import Termination

ENDED = 128 + signal.SIGTERM


def ask_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_ends_at_once_outside_of_a_step() -> None:
    with pytest.raises(SystemExit) as ended, Termination().watched():
        ask_to_end()
        pytest.fail("the program went on")
    assert ended.value.code == ENDED


def test_finishes_a_deferred_step_and_its_nested_steps_first() -> None:
    termination, done = Termination(), []
    with pytest.raises(SystemExit) as ended, termination.watched():
        with termination.deferred():
            with termination.deferred():
                ask_to_end()
                done.append("inner")
            done.append("outer")
        done.append("after")
    assert ended.value.code == ENDED
    assert done == ["inner", "outer"]


def test_ends_also_when_the_exception_was_lost_on_its_way() -> None:
    with pytest.raises(SystemExit) as ended, Termination().watched(), contextlib.suppress(SystemExit):
        ask_to_end()
    assert ended.value.code == ENDED


def test_puts_the_earlier_handler_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Termination().watched():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
