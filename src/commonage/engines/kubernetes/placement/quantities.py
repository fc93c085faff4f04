"""Kubernetes quantities (`500m`, `2Gi`, `1e3`), read exactly."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?", re.ASCII)
_UNITS = {
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Decimal("1e-3"),
    "u": Decimal("1e-6"),
    "n": Decimal("1e-9"),
}


MAX_DEVICES = 256
"""GPUs of a node, and units of a resource that a Pod can hold. A larger number is none that a node has."""


def devices(quantity: str | int) -> int:
    """The number of devices in a quantity of an extended resource, at most `MAX_DEVICES`; 0 if it is no quantity."""
    try:
        return max(0, min(-(-milli(quantity) // 1000), MAX_DEVICES))
    except ValueError:
        return 0


def milli(quantity: str | int | float) -> int:
    """Thousandths, rounded up as the cluster does. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"{str(quantity)[:40]!r} is no quantity of Kubernetes; write 500m, 2 or 4Gi")
    number, exponent, unit = found.groups()
    value = Decimal(number + (exponent or "")) * _UNITS.get(unit or "", Decimal(1))
    return int((value * 1000).to_integral_value(ROUND_CEILING))
