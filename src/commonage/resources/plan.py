"""The difference between resources as they are and as documents declare them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.errors import Conflict
from commonage.domain.resources import Action, Document, FieldChange, ResourceChange, StoredResource
from commonage.resources.documents import Forms, Key, body_of
from commonage.resources.kinds import ORDER


@dataclass(frozen=True, slots=True)
class Declaration:
    """A set of declared resources. `managed_by`: the source that manages them from now on.

    `prune`: resources that this source managed before and no longer declares are deleted. `take_over`: resources that
    another source manages are changed, too.
    """

    forms: Forms
    managed_by: str = ""
    prune: bool = False
    take_over: bool = False


def changes_of(present: Mapping[Key, StoredResource], wanted: Declaration) -> list[ResourceChange]:
    """The changes to make, in the order of the kinds; unchanged resources of the documents are included.

    `present` includes deleted ones. Raises Conflict if a resource is managed by another source.
    """
    found = [_change(key, present.get(key), wanted) for key in wanted.forms]
    found += [
        ResourceChange(one.kind, one.name, Action.DELETE, one.version, one.managed_by)
        for key, one in present.items()
        if wanted.prune and one.body is not None and key not in wanted.forms and one.managed_by == wanted.managed_by
    ]
    return sorted(found, key=lambda one: (ORDER[one.kind], one.name))


def _change(key: Key, before: StoredResource | None, wanted: Declaration) -> ResourceChange:
    kind, name = key
    if before is None or before.body is None:
        version = 0 if before is None else before.version
        return ResourceChange(kind, name, Action.CREATE, version, wanted.managed_by)
    if not wanted.take_over:
        need_unmanaged(before, wanted.managed_by)
    body = StoredResource(kind, name, 0, body_of(wanted.forms[key]))
    fields = tuple(_fields(before.fields, body.fields))
    if before.managed_by != wanted.managed_by:
        fields += (FieldChange("managed_by", before.managed_by or None, wanted.managed_by or None),)
    action = Action.CHANGE if fields else Action.UNCHANGED
    return ResourceChange(kind, name, action, before.version, before.managed_by, fields)


def need_unmanaged(resource: StoredResource, by: str = "") -> None:
    """Raises Conflict if another source than `by` manages it."""
    if resource.managed_by and resource.managed_by != by:
        raise Conflict(
            f"{resource.kind} {resource.name} is managed by {resource.managed_by}. Change it there.",
            code="managed-elsewhere",
        )


def _fields(before: Document, after: Document, path: str = "") -> Iterator[FieldChange]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _fields(old, new, f"{path}{name}.")
        else:
            yield FieldChange(path + name, old, new)


def flat(fields: Document, path: str = "") -> dict[str, Any]:
    """Nested fields by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return found
