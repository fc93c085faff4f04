"""The use of Pods, from a kubelet's summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.statuses import Measurement
from commonage.engines.kubernetes.manifest import Manifest

_MIB = 1024 * 1024


def measurements_of(summary: Manifest, attempts: Mapping[str, str], container: str) -> list[Measurement]:
    """The use of each attempt; `attempts` maps the uids of Pods to them. A Pod that just began may be missing."""
    found = []
    for pod in summary.get("pods") or ():
        attempt = attempts.get(pod["podRef"]["uid"])
        stats = next((one for one in pod.get("containers") or () if one["name"] == container), None)
        if attempt is None or stats is None:
            continue
        cpu, memory = stats.get("cpu") or {}, stats.get("memory") or {}
        if "usageCoreNanoSeconds" in cpu:
            used = int(memory.get("workingSetBytes", 0))
            found.append(Measurement(attempt, cpu["usageCoreNanoSeconds"] / 1e9, used // _MIB))
    return found
