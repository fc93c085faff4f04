"""Devices of ResourceSlices for ResourceClaims, as the scheduler allocates them. Used by its double.

A request selects one device by driver and uuid; other expressions select none. Memory is added up where claims share a
device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import milli

_SELECTED = re.compile(r"device\.driver == '([^']+)' && device\.attributes\['\1'\]\.uuid == '([^']+)'")
_Device = tuple[str, str, str]
"""Driver, pool and name."""


def allocation_of(
    claim: Manifest, node: str, slices: Iterable[Manifest], others: Iterable[Manifest]
) -> Manifest | None:
    """The allocation of the claim's requests on a node; None if they do not fit beside the `others`."""
    devices = dict(_devices_on(node, slices))
    used: Counter[_Device] = Counter()
    for one in _results(others):
        key = one["driver"], one["pool"], one["device"]
        used[key] += milli((one.get("consumedCapacity") or {}).get("memory", 0)) or 1
    results = []
    for request in claim["spec"]["devices"]["requests"]:
        wanted = request["exactly"]
        found = next((key for key, device in devices.items() if _is_selected(key[0], device, wanted)), None)
        if found is None:
            return None
        asked = (wanted.get("capacity") or {}).get("requests") or {}
        amount = milli(asked.get("memory", 0))
        shared = devices[found].get("allowMultipleAllocations", False)
        total = milli(devices[found]["capacity"]["memory"]["value"])
        if used[found] and (not shared or used[found] + amount > total):
            return None
        used[found] += amount or 1
        driver, pool, device = found
        result = {"request": request["name"], "driver": driver, "pool": pool, "device": device}
        results.append(result | ({"consumedCapacity": asked} if shared else {}))
    return {"devices": {"results": results}}


def _devices_on(node: str, slices: Iterable[Manifest]) -> Iterator[tuple[_Device, Manifest]]:
    for one in slices:
        spec = one["spec"]
        if spec.get("nodeName") == node:
            for device in spec.get("devices") or ():
                yield (spec["driver"], spec["pool"]["name"], device["name"]), device


def _results(claims: Iterable[Manifest]) -> Iterator[Manifest]:
    for claim in claims:
        yield from ((claim.get("status") or {}).get("allocation") or {"devices": {"results": ()}})["devices"]["results"]


def _is_selected(driver: str, device: Manifest, wanted: Manifest) -> bool:
    expressions = [_SELECTED.fullmatch(one["cel"]["expression"]) for one in wanted["selectors"]]
    return all(one is not None and (one[1], one[2]) == (driver, _uuid_of(device)) for one in expressions)


def _uuid_of(device: Manifest) -> str:
    return str(device["attributes"]["uuid"]["string"])
