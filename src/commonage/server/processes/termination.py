"""SIGTERM as an exception, for programs that must release the resources they apply. Used by `gpu_doctor`.

An exception that a signal handler raises inside a `finally` block would skip the rest of its clean-up. So it is
raised only where the program allows interruption, which is where it waits.
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
        """Watch for SIGTERM within the block; a SIGTERM always ends the block by SystemExit."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
            self._raise_if_asked()
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGTERM end this block at once. The code that releases must know beforehand what the block applies."""
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
