"""What FastAPI's own description of the API lacks: the messages that routes read themselves, and how one signs in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from commonage.wire.images import ImageIn, ImageNameIn, PrepullIn
from commonage.wire.joining import JoinTokenIn
from commonage.wire.platform import TokenIn
from commonage.wire.tenants import ReservationIn
from commonage.wire.workloads import Problem, StopIn, SubmitIn

_REF = "#/components/schemas/{model}"
_READ_BY_ROUTES = (SubmitIn, StopIn, TokenIn, ReservationIn, ImageIn, ImageNameIn, PrepullIn, JoinTokenIn)
_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the hub: `Authorization: Bearer TOKEN` (or `token TOKEN`, the hub's own way).",
    }
}


def complete(api: FastAPI) -> None:
    """Have `api.openapi()`, and with it openapi.json, say everything."""
    plain = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(plain())
        return plain()

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _complete(schema: dict[str, Any]) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    _, definitions = models_json_schema(
        [*((model, "validation") for model in _READ_BY_ROUTES), (Problem, "serialization")], ref_template=_REF
    )
    schemas.update(definitions["$defs"])
    _drop_validation_errors(schema)
    schema["components"]["securitySchemes"] = _SCHEMES
    schema["security"] = [{"bearer": []}]


def _drop_validation_errors(schema: dict[str, Any]) -> None:
    """FastAPI documents validation errors of its own kind; ours are problem documents, declared where they occur."""
    for unused in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(unused, None)
    for methods in schema["paths"].values():
        for operation in methods.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
