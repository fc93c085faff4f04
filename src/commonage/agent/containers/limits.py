"""Sets limits on running containers that Swarm services cannot express: CPU weight by requested cores, and no swap.

Everything here blocks: call it in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from commonage.agent.containers.containers import Container
from commonage.agent.containers.docker import DaemonRefused, DockerDaemon

_log = logging.getLogger(__name__)
_AGAIN_S = 10.0


class Limits:
    """`weighs`: cores are shared by weight instead of limited by a quota, which a Swarm service can set itself."""

    def __init__(self, daemon: DockerDaemon, *, weighs: bool) -> None:
        self._daemon = daemon
        self._weighs = weighs
        self._held: set[str] = set()
        self._again_at: dict[str, float] = {}

    def see_to(self, running: Mapping[str, Container], now: float) -> None:
        """Set the limits of running containers that do not have them yet. `now` is monotonic.

        If the daemon refuses (for example because more memory is in swap already than allowed), it is retried some
        seconds later. Raises EngineFailure if the daemon is gone.
        """
        self._held &= running.keys()
        self._again_at = {key: at for key, at in self._again_at.items() if key in running}
        for key, one in running.items():
            if key in self._held or now < self._again_at.get(key, now):
                continue
            try:
                self._tell(one)
            except DaemonRefused as error:
                if key not in self._again_at:
                    _log.warning("%s is not held to its cores and memory: %s", one.attempt_id, error)
                self._again_at[key] = now + _AGAIN_S
            else:
                self._held.add(key)

    def _tell(self, one: Container) -> None:
        shares = max(2, one.cpus_milli * 1024 // 1000) if self._weighs and one.cpus_milli else 0
        memory = one.memory if one.memory != one.memory_and_swap else 0
        if shares or memory:
            self._daemon.hold(one.id, shares=shares, memory=memory)
