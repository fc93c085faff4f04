"""Reads documents: checks one against the form of its kind, and writes it in its shortest form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from commonage.domain.errors import InvalidInput
from commonage.domain.resources import StoredResource
from commonage.resources.fields import DOCUMENT, Form
from commonage.resources.kinds import KINDS, known_kind

Key = tuple[str, str]
Forms = Mapping[Key, Form]


def parse(document: object, at: str = "") -> tuple[Key, Form]:
    """The (kind, name) of a document, and its form. Raises InvalidInput, whose field begins with `at`."""
    if not isinstance(document, dict):
        raise InvalidInput("a resource is a mapping with kind, name and fields", field=at or None)
    try:
        kind = known_kind(document.get("kind"))
        form = read(kind.name, {name: value for name, value in document.items() if name != "kind"})
    except InvalidInput as error:
        field = ".".join(part for part in (at, error.field) if part)
        raise InvalidInput(error.message, field=field or None, code=error.problem_code) from None
    return (kind.name, form.name), form


def parse_all(documents: Sequence[object]) -> dict[Key, Form]:
    """All documents by kind and name. Raises InvalidInput, whose field is `documents.NUMBER.FIELD`."""
    found: dict[Key, Form] = {}
    for number, document in enumerate(documents):
        key, form = parse(document, f"documents.{number}")
        if key in found:
            raise InvalidInput(f"{key[0]} {key[1]} is declared twice", field=f"documents.{number}.name")
        found[key] = form
    return found


def read(kind: str, fields: Mapping[str, Any]) -> Form:
    """The form of a kind with these fields. Raises InvalidInput with the field."""
    model = KINDS[kind].form
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        why = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            known = "" if "." in path else f". Fields of {kind}: {', '.join(field_names(model))}"
            why = f"no such field{known}"
        elif first["type"] == "string_pattern_mismatch":
            why = f"{str(first['input'])[:60]!r} is not allowed. {_in_words(first['ctx']['pattern'])}"
        elif first["type"] in _NUMBERS:
            why = f"{str(first['input'])[:60]!r} is not {_NUMBERS[first['type']]}"
        name = fields.get("name", "")
        raise InvalidInput(f"{kind} {name}: {f'{path}: ' if path else ''}{why}", field=path or None) from None


def _in_words(pattern: str) -> str:
    """The pattern of a name in words: it lists words, or a first character and `{0,N}` of a class."""
    words = re.fullmatch(r"\^\(?([a-z|]+)\)?\$", pattern)
    if words is not None:
        return f"Allowed: {', '.join(words[1].split('|'))}."
    characters, most = re.findall(r"\[([^]]+)]\{0,(\d+)}", pattern)[-1]
    kinds = [text for part, text in _CHARACTERS.items() if part in characters]
    rest = re.sub("A-Z|a-z|0-9| ", "", characters)
    begins = "a letter" if "0-9" not in pattern.partition("]")[0] else "a letter or digit"
    return f"Use at most {int(most) + 1} {', '.join(kinds)} and {rest}. The first is {begins}."


_NUMBERS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
_CHARACTERS = {"A-Z": "capital letters", "a-z": "lower-case letters", "0-9": "digits", " ": "spaces"}


def field_names(model: type[Form]) -> list[str]:
    return [field.serialization_alias or name for name, field in model.model_fields.items()]


def body_of(form: Form) -> str:
    """The JSON text of its fields that differ from their defaults, with units."""
    fields = form.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"name"}, context=DOCUMENT)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def form_of(resource: StoredResource) -> Form:
    return read(resource.kind, {"name": resource.name, **resource.fields})
