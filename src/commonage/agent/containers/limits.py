"""Sets limits on running containers that Swarm services cannot express: CPU weight by requested cores, and no swap.

Everything here blocks: call it in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from commonage.agent.containers.containers import Container
from commonage.agent.containers.docker import DaemonRefused, DockerDaemon

_log = logging.getLogger(__name__)
_RETRY_S = 10.0


class Limits:
    """`cpu_weights`: cores are shared by weight instead of limited by a quota, which a Swarm service can set itself."""

    def __init__(self, daemon: DockerDaemon, *, cpu_weights: bool) -> None:
        self._daemon = daemon
        self._cpu_weights = cpu_weights
        self._done: set[str] = set()
        self._retry_at: dict[str, float] = {}

    def apply(self, running: Mapping[str, Container], now: float) -> None:
        """Set the limits of running containers that do not have them yet. `now` is monotonic.

        If the daemon refuses (for example because more memory is in swap already than allowed), it is retried some
        seconds later. Raises EngineFailure if the daemon is gone.
        """
        self._done &= running.keys()
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in running}
        for key, one in running.items():
            if key in self._done or now < self._retry_at.get(key, now):
                continue
            try:
                self._set_limits(one)
            except DaemonRefused as error:
                if key not in self._retry_at:
                    _log.warning("the limits of %s cannot be set: %s", one.attempt_id, error)
                self._retry_at[key] = now + _RETRY_S
            else:
                self._done.add(key)

    def _set_limits(self, one: Container) -> None:
        shares = max(2, one.cpus_milli * 1024 // 1000) if self._cpu_weights and one.cpus_milli else 0
        memory = one.memory if one.memory != one.memory_and_swap else 0
        if shares or memory:
            self._daemon.set_limits(one.id, shares=shares, memory=memory)
