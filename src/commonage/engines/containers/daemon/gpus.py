"""Method by which a daemon gives its containers NVIDIA GPUs, according to itself (`/info`) and its files.

By CDI it must know a specification that names the GPUs by their uuids; by device request it must have found the
container toolkit's hook when it started. Daemons older than 28 do not report what they found: their folders are read,
which may block. Used by the Docker and Swarm engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import ContainersWithoutGpus

GpuMethod = Literal["cdi", "request"]
KIND = "nvidia.com/gpu"
HOOK = "nvidia-container-runtime-hook"
"""Program of the toolkit, which the daemon looks for on its PATH when it starts."""
BY_UUID = "CDI does not know the GPUs by their uuids: run `nvidia-ctk cdi generate --device-name-strategy=uuid`"
_MAX_BYTES = 4 * 2**20
_NAME = re.compile(r"""^[\s{,-]*"?name"?\s*:\s*["']?([\w.:/-]+)""", re.MULTILINE)
_OF_GPUS = re.compile(rf"""^[\s{{,]*"?kind"?\s*:\s*["']?{re.escape(KIND)}\b""", re.MULTILINE)


def has_runtime(info: Mapping[str, Any]) -> bool:
    """True if it knows NVIDIA's runtime, so that the toolkit is installed."""
    return "nvidia" in (info.get("Runtimes") or {})


def services_fault(info: Mapping[str, Any]) -> Reason | None:
    """Why this daemon gives no GPUs to services of a Swarm, which cannot request them."""
    default = str(info.get("DefaultRuntime") or "runc")
    program = str(((info.get("Runtimes") or {}).get(default) or {}).get("path", ""))
    if "nvidia" in default or "nvidia" in program:
        return None
    return ContainersWithoutGpus(runtime=default)


def cdi_names(info: Mapping[str, Any]) -> frozenset[str]:
    """CDI names of NVIDIA GPUs: uuids, indices, `all`, as the author of the specification chose."""
    discovered = info.get("DiscoveredDevices")
    if discovered is not None:
        ids = (str(one.get("ID", "")) for one in discovered if one.get("Source") == "cdi")
        return frozenset(one.removeprefix(f"{KIND}=") for one in ids if one.startswith(f"{KIND}="))
    return frozenset(name for text in _specifications(info) if _OF_GPUS.search(text) for name in _NAME.findall(text))


def _specifications(info: Mapping[str, Any]) -> Iterator[str]:
    for folder in info.get("CDISpecDirs") or ():
        with suppress(OSError):
            for file in sorted(Path(folder).iterdir()):
                if file.suffix in (".json", ".yaml") and file.stat().st_size <= _MAX_BYTES:
                    # One entry on each line, whatever program wrote it.
                    yield re.sub(r"([{,])", "\\1\n", file.read_text(encoding="utf-8", errors="replace"))


def gpu_method_of(info: Mapping[str, Any]) -> GpuMethod:
    """CDI if it knows GPUs by that and has no NVIDIA runtime; else device requests, which need the toolkit."""
    return "cdi" if not has_runtime(info) and cdi_names(info) else "request"


def lacks_uuids(info: Mapping[str, Any]) -> bool:
    """True if GPUs are given by CDI, and none has its uuid, which we use, as a name there."""
    return gpu_method_of(info) == "cdi" and not any(name.startswith(("GPU-", "MIG-")) for name in cdi_names(info))
