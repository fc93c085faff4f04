"""Changes of an object as the API server makes them: merge patch, strategic merge, server-side apply. Pure.

A subset: lists of objects are merged by the key `name` (conditions by `type`), and all other lists are replaced. Fields
are owned as whole branches down to such a list's items.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commonage.engines.kubernetes.manifest import Manifest

_KEYS = ("name", "type")
_NOT_OWNED = frozenset({"apiVersion", "kind", "metadata.name", "metadata.namespace"})


def merge_patched(found: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    made = dict(found) if isinstance(found, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge_patched(made.get(key), value)
    return made


def strategic_patched(found: Any, patch: Any) -> Any:
    """As `merge_patched`, but named items of a list are merged, or deleted by `$patch: delete`."""
    if isinstance(patch, Mapping):
        made = dict(found) if isinstance(found, Mapping) else {}
        for key, value in patch.items():
            if value is None:
                made.pop(key, None)
            else:
                made[key] = strategic_patched(made.get(key), value)
        return {key: value for key, value in made.items() if value != [] or patch.get(key) == []}
    key = _key_of(patch)
    if key is None:
        return copy.deepcopy(patch)
    items = list(found or ())
    for one in patch:
        at = next((at for at, item in enumerate(items) if item.get(key) == one[key]), None)
        if one.get("$patch") == "delete":
            items = [item for item in items if item.get(key) != one[key]]
        elif at is None:
            items.append(copy.deepcopy(one))
        else:
            items[at] = strategic_patched(items[at], one)
    return items


def _key_of(value: Any) -> str | None:
    """The key of the items of a list that is merged; None for all else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    return next((key for key in _KEYS if all(isinstance(one, Mapping) and key in one for one in value)), None)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each field that can be owned."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}" if path else str(key))
    elif (key := _key_of(value)) is not None:
        for one in value:
            yield from leaves(one, f"{path}[{one[key]}]")
    elif path not in _NOT_OWNED:
        yield path, value


def applied(found: Manifest, wanted: Manifest, before: Manifest | None) -> Manifest:
    """The object after an apply. What the manager applied before and does not want any more is removed."""
    made = strategic_patched(found, wanted)
    if before is not None:
        made = _without(made, before, wanted)
    return dict(made)


def _without(found: Any, before: Any, wanted: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(found, Mapping):
        wanted = wanted if isinstance(wanted, Mapping) else {}
        return {
            key: _without(value, before[key], wanted[key]) if key in wanted and key in before else value
            for key, value in found.items()
            if key in wanted or key not in before
        }
    key = _key_of(before)
    if key is None or _key_of(found) != key:
        return found
    now = {one[key]: one for one in wanted} if _key_of(wanted) == key else {}
    old = {one[key]: one for one in before}
    return [
        _without(one, old[one[key]], now[one[key]]) if one[key] in now and one[key] in old else one
        for one in found
        if one[key] in now or one[key] not in old
    ]
