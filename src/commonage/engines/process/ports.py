"""Loopback ports for sessions and services.

Each given to one run at a time, and none that somebody else listens on.
"""

from __future__ import annotations

import socket

from commonage.domain.errors import EngineFailure


class PortRange:
    """Hands out ports from `first` to `last`, in turn, so that one just given back is not at once given again.

    The turn begins at `start`. Several servers on one machine should begin at different ports: a port is free until its
    session listens, which may take minutes, and two servers that began at the same one would both give it out.
    """

    def __init__(self, first: int, last: int, start: int) -> None:
        self._first, self._last = first, last
        self._next = start
        self._held: set[int] = set()

    def take(self) -> int:
        """A free port. Raises EngineFailure when there is none."""
        for _ in range(self._last - self._first + 1):
            port = self._next
            self._next = self._first if port == self._last else port + 1
            if port not in self._held and _is_free(port):
                self._held.add(port)
                return port
        raise EngineFailure(f"no port from {self._first} to {self._last} is free", retryable=True)

    def hold(self, port: int) -> None:
        """This one is taken, by a run found again."""
        self._held.add(port)

    def give_back(self, port: int | None) -> None:
        """Its run ended."""
        self._held.discard(port or 0)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of the last owner that still linger do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
