"""The versions of the loaded NVIDIA driver and of the NVML library, for the error message about a mismatch.

Used by `errors`. The kernel module's version is in /proc/driver/nvidia/version, the library's in its file name.
"""

from __future__ import annotations

import re
from pathlib import Path

LOADED = Path("/proc/driver/nvidia/version")
MAPPED = Path("/proc/self/maps")
_LOADED = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")


def loaded_version(path: Path = LOADED) -> str:
    """The version of the kernel module; empty if none is loaded."""
    return _first(_LOADED, path)


def library_version(path: Path = MAPPED) -> str:
    """The version of the NVML library in this process; empty if none is loaded, or its name has no version."""
    return _first(_LIBRARY, path)


def in_words(loaded: Path = LOADED, mapped: Path = MAPPED) -> str:
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
