"""Tolerations of our pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

_TOLERATION = re.compile(
    r"((?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)(?:=([A-Za-z0-9._-]{0,63}))?"
    r"(?::(NoSchedule|PreferNoSchedule|NoExecute))?",
    re.ASCII,
)

Toleration: TypeAlias = Mapping[str, Any]
"""As in the spec of a pod: `key`, `operator`, `value`, `effect`."""


def read_toleration(text: str) -> Toleration:
    """One as it is written in a setting: `KEY[=VALUE][:EFFECT]`, as taints are. Raises ValueError."""
    found = _TOLERATION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:80]!r} is no toleration; write KEY, KEY=VALUE or KEY=VALUE:EFFECT with the effect NoSchedule, "
            "PreferNoSchedule or NoExecute"
        )
    key, value, effect = found.groups()
    rule = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": key, **rule, **({"effect": effect} if effect else {})}


def tolerates(toleration: Toleration, taint: Mapping[str, Any]) -> bool:
    """True if the toleration matches the taint without a time limit (`tolerationSeconds`)."""
    if toleration.get("tolerationSeconds") is not None:
        return False
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
