"""`mig`: a share is a whole MIG instance; the hardware isolates its memory and its compute.

The inventory lists instances as devices, and a request takes a whole one (`domain/requests.py`), so there is nothing to
apply: the instance's uuid in CUDA_VISIBLE_DEVICES makes only this instance visible. Admins split GPUs with `mig_split`.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.nodes import Device, Isolation
from commonage.gpu.isolation.level import Level, is_nvidia
from commonage.ports.devices import ShareAssignment


class Mig(Level):
    """Shares that are MIG instances."""

    isolation = Isolation.MIG

    def available(self, device: Device) -> str:
        """On instances only: a GPU in MIG mode is not listed itself."""
        if device.parent_uuid is not None:
            return ""
        if device.simulated or not is_nvidia(device):
            return "the GPU is simulated" if device.simulated else "only NVIDIA's GPUs have it"
        return "the GPU is not split into MIG instances; GPUs that can be are split with `commonage node mig`"

    def apply(self, hold: ShareAssignment) -> Mapping[str, str]:
        """No variables to add."""
        return {}
