"""NVML for those who set limits: a session of its own for each use, and its errors in our words.

`nvml.NvmlDevices` may shut NVML down and start it anew at any time; the library counts who uses it, so a session that
is open meanwhile stays valid. Used by `driver_limit` and `mps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml


@contextmanager
def nvml() -> Iterator[None]:
    """NVML started for the time of the block. Raises pynvml.NVMLError."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def handle_of(uuid: str) -> Any:
    """The driver's handle of a card. Raises pynvml.NVMLError."""
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def words(error: pynvml.NVMLError) -> str:
    """What the driver answered, for a sentence of ours."""
    return f"the driver answers {str(error)!r} (NVML code {error.value})"
