"""Settings of the process engine.

Filled by bootstrap; nothing is read from the environment here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of one process engine; every default is meant to be right for a single node.

    `node_name` (None: the host's name), `cpus_milli`, `memory_mib` (None: all of the computer) and `labels`
    describe the single node. `first_port`..`last_port`: ports of sessions and services, below the kernel's range
    for outgoing connections. `max_log_mib`: disk limit of one log. `processes_max`: limit of processes and threads
    of one attempt. `bundle_max_mib`: limit of the unpacked files of a job. `cgroups`: whether control groups may be
    used. `disk_low_mib`: with less free space the node reports a fault. `cpu_hold`: requested CPUs are a weight
    (`share`) or a limit (`quota`). `warm_sessions`: fork sessions from a preloaded parent, which takes about 130
    MiB for each environment. `keep_logs_days`, `keep_logs_mib`: retention of the logs of forgotten attempts.
    """

    node_name: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    first_port: int = 20_000
    last_port: int = 29_999
    max_log_mib: int = 512
    processes_max: int = 4096
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    cgroups: bool = True
    cpu_hold: Literal["share", "quota"] = "share"
    warm_sessions: bool = True
    keep_logs_days: int = 90
    keep_logs_mib: int = 20 * 1024
