"""SIGTERM as an exception for programs that apply something and must release it again. Used by `gpu_doctor`.

An exception that a signal handler raises in the middle of a step can be lost there, or leave something applied that is
not written down yet. So steps that must be whole run within `deferred`: the exception then comes right after them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Termination:
    """Raises SystemExit(128 + SIGTERM) in the main thread once the process is asked to end, between `watched` steps."""

    def __init__(self) -> None:
        self._asked = False
        self._deferring = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for SIGTERM within the block; whatever happens, a request to end ends the block by SystemExit."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
            self._raise_if_asked()
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block finish first."""
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        self._raise_if_asked()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._asked = True
        self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._asked and not self._deferring:
            raise SystemExit(128 + signal.SIGTERM)
