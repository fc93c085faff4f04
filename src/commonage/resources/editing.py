"""The fields of a kind as rows of text, for forms: one row for each field, nested fields by dotted path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.errors import InvalidInput
from commonage.domain.resources import Document
from commonage.resources.kinds import KINDS
from commonage.resources.schema import schema


@dataclass(frozen=True, slots=True)
class FieldRow:
    """`control` is `text`, `choice`, `lines` (a list), `pairs` (NAME=VALUE) or `json`. Only a choice has `choices`."""

    path: str
    description: str
    control: str = "text"
    choices: tuple[str, ...] = ()
    required: bool = False


def rows_of(kind: str) -> list[FieldRow]:
    """The rows of a kind, without kind and name."""
    definitions = schema()["$defs"]
    return list(_rows(definitions[KINDS[kind].form.__name__], definitions))


def _rows(form: Mapping[str, Any], definitions: Mapping[str, Any], path: str = "") -> Iterator[FieldRow]:
    for name, given in form["properties"].items():
        if not path and name in ("kind", "name"):
            continue
        field = next((one for one in given.get("anyOf", ()) if one.get("type") != "null"), given)
        inner = definitions.get(str(field.get("$ref", "")).rpartition("/")[2], field)
        if "properties" in inner:
            yield from _rows(inner, definitions, f"{path}{name}.")
            continue
        text = str(given.get("description", ""))
        required = name in form.get("required", ())
        kind = inner.get("type")
        choices = ("true", "false") if kind == "boolean" else tuple(inner.get("enum", ()))
        nested = "$ref" in str(inner.get("items", "")) or "$ref" in str(inner.get("additionalProperties", ""))
        plain = {"array": "lines", "object": "pairs"}.get(str(kind), "text")
        control = "choice" if choices else "json" if nested and plain != "text" else plain
        yield FieldRow(path + name, text, control, choices, required)


def texts_of(kind: str, document: Document) -> dict[str, str]:
    """The fields of a document as text, by path; missing ones are empty."""
    return {row.path: _text(row, _at(document, row.path)) for row in rows_of(kind)}


def document_of(kind: str, texts: Mapping[str, str]) -> Document:
    """The fields from their texts; empty ones are left out, so that they have their defaults.

    Raises InvalidInput for a text that is not JSON, where that is needed.
    """
    made: Document = {}
    for row in rows_of(kind):
        text = texts.get(row.path, "").strip()
        if not text:
            continue
        *outer, name = row.path.split(".")
        inner = made
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = _value(row, text)
    return made


def _value(row: FieldRow, text: str) -> Any:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if row.control == "json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"{row.path} is not valid JSON: {error}", field=row.path) from None
    if row.control == "lines":
        return lines
    if row.control == "pairs":
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text


def _at(document: Document, path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(row: FieldRow, value: Any) -> str:
    if value is None:
        return ""
    if row.control == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())
    return str(value)
