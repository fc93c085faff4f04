"""`mig`: a share is a whole MIG instance; the hardware isolates its memory and its compute.

The inventory lists instances as devices, and a request takes a whole one (`domain/requests.py`), so there is nothing to
apply: the instance's uuid in CUDA_VISIBLE_DEVICES makes only this instance visible. Admins split GPUs with `mig_split`.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuSimulated, NotSplit, NvidiaOnly
from commonage.gpu.isolation.level import Level, is_nvidia
from commonage.ports.devices import ShareAssignment


class Mig(Level):
    isolation = Isolation.MIG

    def why_unavailable(self, device: Device) -> Reason | None:
        """On instances only: a GPU in MIG mode is not listed itself."""
        if device.parent_uuid is not None:
            return None
        if device.simulated:
            return GpuSimulated()
        return NotSplit() if is_nvidia(device) else NvidiaOnly()

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        return {}
