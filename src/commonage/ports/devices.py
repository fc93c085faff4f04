"""The GPUs of one node: inventory, measurements, and how a workload's share is enforced.

Implemented in `commonage.gpu` (real GPUs, simulated ones, none). Control calls it in a thread, because driver calls
may take long. An implementation must pass `commonage.testing.devices_contract`. The scheduler, not this port, assigns
shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.nodes import Allocation, Device, Share


class DevicesUnavailable(Unavailable):
    """The GPU driver cannot be used: absent, broken, or without permission. The message says what to do."""

    code: ClassVar[str] = "devices-unavailable"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """VRAM held by one process on one device, including the CUDA context, and its recent utilisation 0..1.

    A figure is None if the driver does not report it. `attempt_id` is set only where it is known without a lookup
    (simulated GPUs, which have no real processes and so no `pid`); on real GPUs the watcher finds the attempt by the
    pid.
    """

    pid: int | None
    memory_mib: int | None
    attempt_id: str | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Present measurements of one device. A figure that is not reported is None, never an estimate.

    `utilisation` is the fraction of the last moments in which it computed, 0..1. `energy_j` is the device's own counter
    of energy used: it only rises, until the driver is reloaded. `throttle` are the reasons for low clocks, as text;
    `ecc_*` count memory errors since the driver was loaded, `remapped_*` the memory rows replaced for good; `xid` is
    the number of the driver's last error message about it (NVIDIA's Xid).
    """

    uuid: str
    memory_used_mib: int | None
    utilisation: float | None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[ProcessMemory, ...] = ()
    energy_j: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """Resources that an attempt is about to use: its shares, and the folders of its control groups.

    `in_container`: it runs in a container, whose runtime creates the control group and applies the variables.
    """

    attempt_id: str
    shares: tuple[Share, ...]
    cgroups: tuple[str, ...] = ()
    in_container: bool = False


class ShareNotEnforced(EngineFailure):
    """A share cannot be enforced at its isolation level. The message says why; nothing remains applied."""

    code: ClassVar[str] = "share-not-enforced"


class Devices(Protocol):
    """The GPUs of this node. Methods may block (driver calls) and may be called from several threads.

    By default only the variables of `environment` enforce a share: nothing is applied, and no fault is remembered.
    """

    def inventory(self) -> Sequence[Device]:
        """Every GPU, by index. A lost or broken one stays listed, with its fault.

        Raises DevicesUnavailable only if no GPU was ever seen.
        """

    def measure(self) -> Sequence[DeviceSample]:
        """A sample of every GPU that answers now; others are left out, and `inventory` says why."""

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables for a workload that holds these shares; without shares, variables that hide all GPUs."""

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """The allocations whose program runs now; `at` is its start. Real GPUs ignore them, simulated ones show use."""
        return

    def resume(self, uuid: str | None = None) -> None:
        """Clear the remembered faults of this GPU (None: of all), because an admin has declared it healthy.

        Faults that persist are found again. Unknown uuids are no error.
        """
        return

    def enforce(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """Enforce these shares at their isolation level before the attempt's command runs; returns extra variables.

        Idempotent by the attempt's id. The change is recorded on disk first, so that it is released after a crash. The
        returned variables override the attempt's own, except PYTHONPATH, which is prepended to its own. Raises
        ShareNotEnforced; then nothing remains applied.
        """
        return {}

    def release(self, attempt_id: str) -> None:
        """Undo `apply` for an attempt that has no process any more. Idempotent; unknown ids are no error."""
        return

    def settle(self, live: Collection[str]) -> None:
        """Called after a start with all live attempts. Releases the shares of all others."""
        return

    def enforced(self) -> Collection[str]:
        """The attempts for which something is applied now."""
        return ()

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        """Warnings about attempts since the last call, each as an attempt id and a sentence for its owner."""
        return ()

    def close(self) -> None:
        """Close the driver. Idempotent; nothing else is called afterwards."""
        return
