"""Settings of the process engine.

Filled by bootstrap; nothing is read from the environment here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of one process engine; every default is meant to be right for a single node.

    `node_name` (None: the host's name), `cpus_milli` and `memory_mib` (None: all there is) are what the one node
    reports, with `labels` beside those of its own. `first_port`..`last_port` are given to sessions and services;
    they lie below the range from which the kernel takes ports for outgoing connections. `max_log_mib`: most disk
    space of one run's log. `processes_max`: processes and threads of one attempt, so that a
    fork bomb ends itself. `bundle_max_mib`: files sent along with a job, unpacked. `cgroups` false never touches
    them, as on a node that has none. `disk_low_mib`: with less free space the node reports a fault. `cpu_hold`:
    what an attempt asked for is its `share` of cores that others want, too, or a `quota` that it never exceeds on
    average. `warm_sessions`: sessions are forked from a parent (one of about 130 MiB for each environment) that has
    done the imports. `keep_logs_days` and `keep_logs_mib`: how long, and how much in all, the logs of forgotten
    attempts are kept.
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
