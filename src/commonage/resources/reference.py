"""The page of the reference about platform resources, from their JSON Schema. Called by `scripts/docs.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from commonage.resources.kinds import KINDS
from commonage.resources.schema import schema

_INTRODUCTION = """# Resources

A `commonage.yml` file has one document for each resource, separated by `---`. Each document has `kind`, `name` and the
fields of its kind. Amounts are written with units: `64GiB`, `10m`, and `8` or `0.5` for CPUs.
[The guide](../operate/resources.md) explains how to use them; [resources.schema.json](resources.schema.json) is their
JSON Schema."""


def reference() -> str:
    definitions = schema()["$defs"]
    parts = [_INTRODUCTION]
    for kind in KINDS.values():
        form = definitions[kind.form.__name__]
        parts += ["", f"## {kind.name}", "", form["description"], ""]
        parts += ["| field | type | default | what it is |", "|---|---|---|---|"]
        parts += _rows(form, definitions)
    return "\n".join(parts) + "\n"


def _rows(form: Mapping[str, Any], definitions: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, field in form["properties"].items():
        if name == "kind":
            continue
        inner = _definition(field, definitions)
        default = "required" if name in form.get("required", ()) else _default(field.get("default"))
        text = str(field.get("description", "")).replace("|", "\\|")
        if inner is not None and "properties" in inner:
            yield f"| `{path}{name}` | mapping | | {text} |"
            yield from _rows(inner, definitions, f"{path}{name}.")
        else:
            yield f"| `{path}{name}` | {_type(inner or field)} | {default} | {text} |"


def _definition(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    place = field.get("$ref")
    found: Mapping[str, Any] | None = definitions[place.rpartition("/")[2]] if place else None
    return found


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return next(_type(one) for one in field["anyOf"] if one.get("type") != "null")
    kind = field.get("type", "value")
    names = {"array": "list", "object": "mapping", "string": "text"}
    return "amount" if isinstance(kind, list) else names.get(kind, str(kind))


def _default(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(value)}`" if isinstance(value, list) else f"`{value}`"
