"""Measures the memory that a CUDA context takes, once for each GPU and driver, and keeps it in a file.

It is subtracted from a share before frameworks get their limit. If it cannot be measured (no CUDA library, a GPU in
exclusive use), the default of `gpu.environment` applies. Used by `devices.IsolatedDevices`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from commonage.domain.nodes import Device
from commonage.gpu.isolation.level import is_nvidia

log = logging.getLogger(__name__)
_WITHIN_S = 60.0
_POSSIBLE_MIB = range(1, 8192)


class Contexts:
    """The sizes in `file`. `measure` returns MiB, or a sentence why it failed; it runs in a thread."""

    def __init__(self, file: Path, measure: Callable[[Device], int | str] | None = None) -> None:
        self._file = file
        self._measure = measure or measure_context
        self._sizes = _read(file)
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()

    def known(self) -> Mapping[str, int]:
        """MiB by uuid, of the GPUs that were measured with their present driver."""
        with self._lock:
            return {key.partition(" ")[0]: mib for key, mib in self._sizes.items() if key in self._asked}

    def look_for(self, device: Device) -> threading.Thread | None:
        """Measure the device in the background. Returns the thread, None if there is nothing (more) to measure."""
        key = f"{device.uuid} {device.driver}"
        with self._lock:
            if key in self._asked or device.simulated or device.faults or not is_nvidia(device):
                return None
            self._asked.add(key)
            if key in self._sizes:
                return None
        thread = threading.Thread(target=self._find, args=(device, key), name=f"context of {key}", daemon=True)
        thread.start()
        return thread

    def _find(self, device: Device, key: str) -> None:
        with self._one_at_a_time:
            found = self._measure(device)
        if isinstance(found, str) or found not in _POSSIBLE_MIB:
            log.info("the size of a CUDA context on %s is not known, the default is used: %s", device.uuid, found)
            return
        with self._lock:
            self._sizes[key] = found
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                new = self._file.with_suffix(".new")
                new.write_text(json.dumps(self._sizes, indent=1), encoding="ascii")
                os.replace(new, self._file)
            except OSError as error:
                log.warning("the size of CUDA contexts cannot be kept in %s: %s", self._file, error)


def measure_context(device: Device) -> int | str:
    """Measure with a process that creates a context on the GPU and does nothing else."""
    command = [sys.executable, "-m", "commonage.gpu.cuda.probe", "context"]
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        ended = subprocess.run(
            command,
            env={**kept, "CUDA_VISIBLE_DEVICES": device.uuid},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
        answer = json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    return answer["error"] or int(answer["context_mib"])


def _read(file: Path) -> dict[str, int]:
    try:
        sizes = json.loads(file.read_bytes())
        return {str(key): int(mib) for key, mib in sizes.items() if int(mib) in _POSSIBLE_MIB}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
