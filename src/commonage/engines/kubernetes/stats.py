"""The use of Pods, from a kubelet's summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from commonage.domain.statuses import Measurement
from commonage.engines.kubernetes.manifest import Manifest, reading

_MIB = 1024 * 1024
_MAX = 2**63


def measurements_of(summary: Manifest, attempts: Mapping[str, str], container: str) -> list[Measurement]:
    """The use of each attempt; `attempts` maps the uids of Pods to them. A Pod that just began may be missing.

    Raises EngineFailure.
    """
    with reading("the summary of a kubelet"):
        return _measurements(summary, attempts, container)


def count_of(value: object) -> int:
    """A number of bytes or nanoseconds. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= _MAX:
        raise ValueError("a size or a time is not a whole number below 2**63")
    return value


def _measurements(summary: Manifest, attempts: Mapping[str, str], container: str) -> list[Measurement]:
    found = []
    for pod in summary.get("pods") or ():
        attempt = attempts.get(pod["podRef"]["uid"])
        stats = next((one for one in pod.get("containers") or () if one["name"] == container), None)
        if attempt is None or stats is None:
            continue
        cpu, memory = stats.get("cpu") or {}, stats.get("memory") or {}
        if "usageCoreNanoSeconds" in cpu:
            used = count_of(memory.get("workingSetBytes", 0))
            found.append(Measurement(attempt, count_of(cpu["usageCoreNanoSeconds"]) / 1e9, used // _MIB))
    return found
