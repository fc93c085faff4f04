"""Translates NVML's native errors into Commonage's. Used by `nvml` only.

There are two kinds: DevicesUnavailable if the driver as a whole cannot be used, and a fault if one GPU cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    GpuInfoRomCorrupted,
    GpuNeedsReset,
    GpuNotAccessible,
    GpuNotAnswering,
    GpuNotReachable,
    GpuWithoutInterrupts,
    GpuWithoutPower,
)
from commonage.ports.devices import DevicesUnavailable

LOADED = Path("/proc/driver/nvidia/version")
MAPPED = Path("/proc/self/maps")
_LOADED = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
_DRIVER = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "NVIDIA's management library (libnvidia-ml.so.1) cannot be loaded here: install the NVIDIA driver; "
        "a container needs NVIDIA's runtime"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is installed but not loaded: load it with `modprobe nvidia`, and look into "
        "`dmesg` if that fails"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "Driver/library version mismatch: the NVIDIA driver was upgraded while the old one is still "
        "loaded{versions}: reboot, or end everything that uses a GPU and reload it (`rmmod nvidia_uvm nvidia_drm "
        "nvidia_modeset nvidia; modprobe nvidia`), then start again"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "this user may not talk to the NVIDIA driver: give it read and write access to /dev/nvidiactl "
        "and /dev/nvidia* (often by the group `video`)"
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the operating system keeps us from the NVIDIA driver: allow /dev/nvidiactl and /dev/nvidia* in "
        "the cgroup or sandbox that this runs in"
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        "the NVIDIA driver lacks a call that has been in it for years: install a current one"
    ),
}
_DRIVER_RETRYABLE = frozenset(
    {
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
        pynvml.NVML_ERROR_MEMORY,
        pynvml.NVML_ERROR_NOT_READY,
    }
)
_GPU: Mapping[int, Reason] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuNotReachable(),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: GpuWithoutPower(),
    pynvml.NVML_ERROR_IRQ_ISSUE: GpuWithoutInterrupts(),
    pynvml.NVML_ERROR_NO_PERMISSION: GpuNotAccessible(),
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: GpuInfoRomCorrupted(),
}
_ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NO_PERMISSION,
    }
)


def unavailable(error: Any) -> DevicesUnavailable:
    sentence = _DRIVER.get(error.value)
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH and sentence is not None:
        sentence = sentence.format(versions=versions_in_words())
    if sentence is None:
        sentence = f"NVIDIA's management library answers {str(error)!r} (code {error.value}): try `nvidia-smi`"
    return DevicesUnavailable(sentence, retryable=error.value in _DRIVER_RETRYABLE)


def fault(error: Any, index: int) -> Reason:
    if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
        return GpuNeedsReset(index=index)
    unknown = GpuNotAnswering(error=f"{str(error)!r} (NVML code {error.value})", advice="try `nvidia-smi`")
    return _GPU.get(error.value, unknown)


def is_absent(error: Any) -> bool:
    """True if the GPU or driver does not support this one value, which says nothing about the others."""
    return error.value in _ABSENT


# --- versions, for the message about a mismatch ----------------------------------------------------------------------


def loaded_version(path: Path = LOADED) -> str:
    """The version of the kernel module; empty if none is loaded."""
    return _first(_LOADED, path)


def library_version(path: Path = MAPPED) -> str:
    """The version of the NVML library in this process; empty if none is loaded, or its name has no version."""
    return _first(_LIBRARY, path)


def versions_in_words(loaded: Path = LOADED, mapped: Path = MAPPED) -> str:
    """` (550.54.14, the library is of 570.86.10)`, as far as known; else empty."""
    kernel, library = loaded_version(loaded), library_version(mapped)
    known = [kernel, f"the library is of {library}" if library else ""]
    return f" ({', '.join(part for part in known if part)})" if any(known) else ""


def _first(pattern: re.Pattern[str], path: Path) -> str:
    try:
        found = pattern.search(path.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""
