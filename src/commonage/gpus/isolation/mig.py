"""`mig`: a share is a MIG instance, all of it; the hardware keeps it apart, its memory and its compute.

The inventory lists instances as devices of their own, and a request takes a whole one (`domain/parts.py`), so there is
nothing to apply: that only this instance is visible says its uuid in CUDA_VISIBLE_DEVICES. How a card is split is the
admin's business: `mig_split`.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.fleet import Device, Isolation
from commonage.gpus.isolation.level import Level, is_nvidia
from commonage.ports.devices import Hold


class Mig(Level):
    """Shares that are MIG instances."""

    isolation = Isolation.MIG

    def available(self, device: Device) -> str:
        """On instances only: a card in MIG mode is not listed itself."""
        if device.parent_uuid is not None:
            return ""
        if device.simulated or not is_nvidia(device):
            return "the card is simulated" if device.simulated else "only NVIDIA's cards have it"
        return "the card is not split into MIG instances; cards that can be are split with `commonage node mig`"

    def apply(self, hold: Hold) -> Mapping[str, str]:
        """Nothing to add."""
        return {}
