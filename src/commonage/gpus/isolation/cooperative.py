"""`cooperative`: programs are asked to stay within their share; a watchdog looks whether they do.

Most is done by the variables of `gpus.environment`. What no variable can do for PyTorch and TensorFlow does a
`sitecustomize` in a folder that is put on PYTHONPATH (`files.injected`), which runs in the workload's Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commonage.domain.fleet import Device, Isolation
from commonage.files.injected import PYTHON
from commonage.ports.devices import Hold

SITE_VARIABLE = "COMMONAGE_GPU_SITE"


class Cooperative:
    """Variables only."""

    isolation = Isolation.COOPERATIVE

    def available(self, device: Device) -> str:
        """Always: nothing is promised."""
        return ""

    def apply(self, hold: Hold) -> Mapping[str, str]:
        """The folder for every Python of the workload; into a container its engine mounts it."""
        return {} if hold.in_container else {"PYTHONPATH": str(PYTHON), SITE_VARIABLE: str(PYTHON)}

    def release(self, hold: Hold) -> None:
        """Nothing was applied."""

    def settle(self, holds: Sequence[Hold]) -> None:
        """Nothing of ours runs."""

    def watch(self) -> Mapping[str, tuple[str, ...]]:
        """The watchdog is control's."""
        return {}

    def close(self) -> None:
        """Nothing of ours runs."""
