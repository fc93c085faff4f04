"""What an admin may set of the process engine.

Filled by bootstrap; nothing is read from the environment here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of one process engine; every default is meant to be right for a single machine.

    `node_name` (None: the host's name), `cpus_milli` and `memory_mib` (None: all there is) are what the one
    node reports. `first_port`..`last_port` are given to sessions and services; they lie below the range from
    which the kernel takes ports for outgoing connections. `log_keep_mib`: of each run's log the newest part
    of this size is kept. `processes_max`: processes and threads of one attempt, so that a fork bomb ends
    itself. `bundle_max_mib`: files sent along with a job, unpacked. `cgroups` false never touches them, as on
    a machine that has none. `disk_low_mib`: with less free space the node reports a fault.
    """

    node_name: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    first_port: int = 20_000
    last_port: int = 29_999
    log_keep_mib: int = 256
    processes_max: int = 4096
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    cgroups: bool = True
