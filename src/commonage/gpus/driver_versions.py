"""Which NVIDIA driver is loaded, and of which version the library is that asks it: for the sentence about a mismatch.

Used by `nvml_errors`. The kernel's part says its version in /proc/driver/nvidia/version, the library has it in its
name.
"""

from __future__ import annotations

import re
from pathlib import Path

LOADED = Path("/proc/driver/nvidia/version")
MAPPED = Path("/proc/self/maps")
_LOADED = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")


def loaded_version(path: Path = LOADED) -> str:
    """Of the kernel module; empty where none is loaded."""
    return _first(_LOADED, path)


def library_version(path: Path = MAPPED) -> str:
    """Of the NVML library in this process; empty where there is none, or its name does not say."""
    return _first(_LIBRARY, path)


def in_words(loaded: Path = LOADED, mapped: Path = MAPPED) -> str:
    """` (550.54.14, the library is of 570.86.10)`, as far as it is known; else nothing."""
    kernel, library = loaded_version(loaded), library_version(mapped)
    known = [kernel, f"the library is of {library}" if library else ""]
    return f" ({', '.join(part for part in known if part)})" if any(known) else ""


def _first(pattern: re.Pattern[str], path: Path) -> str:
    try:
        found = pattern.search(path.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""
