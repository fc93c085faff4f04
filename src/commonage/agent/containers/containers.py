"""Commonage's running containers, as the Docker daemon lists them, and limits that Swarm services cannot express.

Everything here blocks: call it in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.containers.docker import DaemonRefused, DockerDaemon

_log = logging.getLogger(__name__)
LABEL = "commonage.attempt"
CPUS_LABEL = "commonage.cpus-milli"
"""Label with the cores that an attempt requested, in thousandths, written by the Swarm engine. Sets the CPU weight."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. `pid` is its first process; `cpus_milli` is 0 if it gets no CPU weight.

    `memory` (bytes; 0: no limit) is its memory limit, `memory_and_swap` the limit of both together, as the daemon says.
    """

    id: str
    attempt_id: str
    pid: int
    cpus_milli: int
    memory: int
    memory_and_swap: int


class Containers:
    """The running containers, as the daemon listed them last.

    `may_gain`: a program in one of them may gain privileges, because the daemon was not configured to forbid it. While
    none runs, it keeps the value of the containers that ran last.
    """

    def __init__(self, daemon: DockerDaemon) -> None:
        self._daemon = daemon
        self.running: Mapping[str, Container] = {}
        self.may_gain = False

    def set_daemon_default(self, may_gain: bool) -> None:
        """Take the daemon's own setting. Running containers are more reliable evidence."""
        self.may_gain = may_gain

    def refresh(self) -> None:
        """List the containers again. Raises EngineFailure."""
        listed = {str(one["Id"]) for one in self._daemon.containers(LABEL)}
        new = [self._describe(key) for key in sorted(listed - self.running.keys())]
        kept = {key: one for key, one in self.running.items() if key in listed}
        self.running = {**kept, **{one.id: one for one in new if one is not None}}
        observed = {_gains_privileges(one.pid) for one in self.running.values()} - {None}
        self.may_gain = True in observed if observed else self.may_gain

    def _describe(self, container: str) -> Container | None:
        about = self._daemon.inspect(container)
        if about is None or not about["State"]["Pid"]:
            return None
        labels = about["Config"]["Labels"]
        cpus = str(labels.get(CPUS_LABEL, ""))
        cpus_milli = int(cpus) if cpus.isascii() and cpus.isdigit() else 0
        limits = about["HostConfig"]
        return Container(
            container,
            str(labels[LABEL]),
            int(about["State"]["Pid"]),
            cpus_milli,
            int(limits.get("Memory") or 0),
            int(limits.get("MemorySwap") or 0),
        )

    def of_attempts(self) -> dict[str, str]:
        return {one.id: one.attempt_id for one in self.running.values()}


def _gains_privileges(pid: int) -> bool | None:
    """Whether a process may gain privileges; None if it has ended."""
    try:
        return b"NoNewPrivs:\t0" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None


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
