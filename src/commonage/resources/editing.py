"""The fields of a kind as rows of text, for forms: one row for each field, nested fields by dotted path.

A list or a table of objects is a row with columns. Its texts are at `PATH.NUMBER.COLUMN`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commonage.domain.errors import InvalidInput
from commonage.domain.resources import Document
from commonage.resources.kinds import KINDS
from commonage.resources.schema import schema

NAME = "NAME"
"""The column with the names of a table whose objects have names. No field is written like this."""
_MOST = 10_000  # objects in one list


@dataclass(frozen=True, slots=True)
class FieldRow:
    """`control` is `text`, `choice`, `lines` (a list), `pairs` (NAME=VALUE), `values` (the same, where VALUE
    may be JSON) or `table`.

    Only a choice and lines have `choices`, and only a table has `columns`.
    """

    path: str
    description: str
    control: str = "text"
    choices: tuple[str, ...] = ()
    columns: tuple[FieldRow, ...] = ()


def rows_of(kind: str) -> list[FieldRow]:
    """The rows of a kind, without kind and name."""
    definitions = schema()["$defs"]
    return list(_rows(definitions[KINDS[kind].form.__name__], definitions))


def _rows(form: Mapping[str, Any], definitions: Mapping[str, Any], path: str = "") -> Iterator[FieldRow]:
    for name, given in form["properties"].items():
        if not path and name in ("kind", "name"):
            continue
        inner = _definition(
            next((one for one in given.get("anyOf", ()) if one.get("type") != "null"), given), definitions
        )
        if "properties" in inner:
            yield from _rows(inner, definitions, f"{path}{name}.")
        else:
            yield _row(path + name, str(given.get("description", "")), inner, definitions)


def _row(path: str, text: str, field: Mapping[str, Any], definitions: Mapping[str, Any]) -> FieldRow:
    kind = field.get("type")
    if kind not in ("array", "object"):
        choices = ("true", "false") if kind == "boolean" else tuple(field.get("enum", ()))
        return FieldRow(path, text, "choice" if choices else "text", choices)
    inner = field.get("items") or field.get("additionalProperties")
    each = _definition(inner if isinstance(inner, Mapping) else {}, definitions)
    if "properties" in each:
        named = () if kind == "array" else (FieldRow(NAME, "name"),)
        return FieldRow(path, text, "table", columns=(*named, *_rows(each, definitions)))
    control = "lines" if kind == "array" else "pairs" if each.get("type") == "string" else "values"
    return FieldRow(path, text, control, tuple(each.get("enum", ())))


def _definition(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = definitions.get(str(field.get("$ref", "")).rpartition("/")[2], field)
    return found


def texts_of(kind: str, document: Document) -> dict[str, str]:
    """The fields of a document as text, by path; missing ones are empty."""
    texts: dict[str, str] = {}
    for row in rows_of(kind):
        value = _at(document, row.path)
        if row.control != "table":
            texts[row.path] = _text(value, row.control)
            continue
        named = [{NAME: name, **one} for name, one in value.items()] if isinstance(value, dict) else value or ()
        for number, one in enumerate(named):
            texts |= {f"{row.path}.{number}.{column.path}": _text(_at(one, column.path)) for column in row.columns}
    return texts


def table_of(row: FieldRow, texts: Mapping[str, str], spare: int = 0) -> list[dict[str, str]]:
    """The objects of a table as texts by column, without empty ones, and `spare` empty ones at the end."""
    found = []
    for number in range(_MOST):
        paths = {column.path: f"{row.path}.{number}.{column.path}" for column in row.columns}
        if not any(path in texts for path in paths.values()):
            break
        one = {column: texts.get(path, "").strip() for column, path in paths.items()}
        found += [one] if any(one.values()) else []
    return [*found, *({column.path: "" for column in row.columns} for _ in range(spare))]


def document_of(kind: str, texts: Mapping[str, str]) -> Document:
    """The fields from their texts; empty ones are left out, so that they have their defaults.

    Raises InvalidInput if a name is given twice.
    """
    made: Document = {}
    for row in rows_of(kind):
        if row.control != "table":
            _put(made, row, texts.get(row.path, ""))
            continue
        objects = []
        for given in table_of(row, texts):
            one: Document = {}
            for column in row.columns:
                _put(one, column, given[column.path])
            objects.append(one)
        if objects:
            _set(made, row.path, _by_name(row, objects) if row.columns[0].path == NAME else objects)
    return made


def _by_name(row: FieldRow, objects: Sequence[Document]) -> Document:
    names = [str(one.pop(NAME, "")) for one in objects]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{row.path}: {twice[:60]!r} is given twice", field=row.path)
    return dict(zip(names, objects, strict=True))


def _put(document: Document, row: FieldRow, text: str) -> None:
    """Set the field of this row, unless its text is empty."""
    if text.strip():
        _set(document, row.path, _value(row, text.strip()))


def _set(document: Document, path: str, value: Any) -> None:
    *outer, name = path.split(".")
    for part in outer:
        document = document.setdefault(part, {})
    document[name] = value


def _value(row: FieldRow, text: str) -> Any:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if row.control == "lines":
        return lines
    if row.control in ("pairs", "values"):
        pairs = (line.partition("=") for line in lines)
        read = _json_or_text if row.control == "values" else str
        return {name.strip(): read(value.strip()) for name, _, value in pairs}
    return text


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _at(document: Document, path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any, control: str = "text") -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{name}={_value_text(one, control)}" for name, one in value.items())
    return str(value)


def _value_text(value: Any, control: str) -> str:
    """A text that would be read as JSON is quoted, so that it stays a text."""
    plain = isinstance(value, str) and (control != "values" or _json_or_text(value) == value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
