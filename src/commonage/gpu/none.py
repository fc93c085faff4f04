"""Devices for a node whose GPUs must not be used: `--gpus none`. Opened by `detect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commonage.domain.nodes import Device, Share
from commonage.gpu.environment import share_environment
from commonage.ports.devices import Devices, DeviceSample


class NoDevices(Devices):
    """No GPU; every workload gets variables that hide all GPUs."""

    def inventory(self) -> Sequence[Device]:
        return ()

    def measure(self) -> Sequence[DeviceSample]:
        return ()

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables that hide all GPUs. Shares from before are answered as they were held."""
        return share_environment(shares)
