"""`cooperative`: programs are asked to stay within their share; a watchdog checks whether they do.

Most is done by the variables of `gpu.environment`. PyTorch and TensorFlow have no such variable: a `sitecustomize` in
a folder on PYTHONPATH (`files.injected`) limits them. It runs in the workload's Python.
"""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.nodes import Device, Isolation
from commonage.domain.reasons import Reason
from commonage.files.injected import PYTHON
from commonage.gpu.isolation.level import Level
from commonage.ports.devices import ShareAssignment

SITE_VARIABLE = "COMMONAGE_GPU_SITE"


class Cooperative(Level):
    isolation = Isolation.COOPERATIVE

    def why_unavailable(self, device: Device) -> Reason | None:
        return None

    def apply(self, assignment: ShareAssignment) -> Mapping[str, str]:
        """The folder for every Python of the workload; the engine mounts it into containers."""
        return {} if assignment.in_container else {"PYTHONPATH": str(PYTHON), SITE_VARIABLE: str(PYTHON)}
