"""SIGTERM as an exception for programs that apply something and must release it again. Used by `gpu_doctor`.

An exception that a signal handler raises inside a `finally` block would skip what the block still has to release. So it
is raised only where the program says that it may be interrupted, which is where it waits.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Termination:
    """Raises SystemExit(128 + SIGTERM) in the main thread, once, at the first place that may be interrupted."""

    def __init__(self) -> None:
        self._asked = False
        self._may_raise = False

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
    def interruptible(self) -> Iterator[None]:
        """Let SIGTERM end this block at once. What the block applies must be known to whoever releases it before."""
        self._may_raise = True
        try:
            self._raise_if_asked()
            yield
        finally:
            self._may_raise = False

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._asked = True
        if self._may_raise:
            self._may_raise = False
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._asked:
            raise SystemExit(128 + signal.SIGTERM)
