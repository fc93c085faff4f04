"""A machine whose cards are not to be used: `--gpus none`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commonage.domain.fleet import Device, Share
from commonage.gpus.environment import share_environment
from commonage.ports.devices import Devices, DeviceSample


class NoDevices(Devices):
    """No card at all; every workload is told to see none."""

    def inventory(self) -> Sequence[Device]:
        """Nothing."""
        return ()

    def measure(self) -> Sequence[DeviceSample]:
        """Nothing."""
        return ()

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables that hide all cards. `shares` left from before are answered as they were held."""
        return share_environment(shares)
