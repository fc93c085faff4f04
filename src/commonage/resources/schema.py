"""The JSON Schema of `commonage.yml` files, one document at a time. Served by the API and published in the docs."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from commonage.resources.kinds import KINDS


def schema() -> dict[str, Any]:
    """The schema of one document. A file has several, separated by `---`."""
    models = [(kind.form, "validation") for kind in KINDS.values()]
    _, found = models_json_schema(models, ref_template="#/$defs/{model}")  # type: ignore[arg-type]  # literals
    definitions = found["$defs"]
    for kind in KINDS.values():
        form = definitions[kind.form.__name__]
        form["properties"] = {
            "kind": {"const": kind.name, "description": "Kind of the resource."},
            **form["properties"],
        }
        form["required"] = ["kind", "name", *(name for name in form.get("required", ()) if name != "name")]
        form["title"] = kind.name
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Commonage resources",
        "description": "One document of a commonage.yml file.",
        "type": "object",
        "required": ["kind", "name"],
        "oneOf": [{"$ref": f"#/$defs/{kind.form.__name__}"} for kind in KINDS.values()],
        "$defs": definitions,
    }
