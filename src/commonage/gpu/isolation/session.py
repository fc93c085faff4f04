"""NVML for the modules that set limits: a separate session for each use, and texts of its errors.

`nvml.NvmlDevices` may shut NVML down and restart it at any time; the library counts its users, so a session that is
open meanwhile stays valid. Used by `driver_limit` and `mps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml


@contextmanager
def nvml() -> Iterator[None]:
    """NVML, started for the duration of the block. Raises pynvml.NVMLError."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def handle_of(uuid: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def words(error: pynvml.NVMLError) -> str:
    return f"the driver answers {str(error)!r} (NVML code {error.value})"
