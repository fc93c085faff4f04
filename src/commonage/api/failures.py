"""Turns errors into problem documents: CommonageError, invalid input, unknown paths, and unexpected exceptions.

Installed on the API by `app`. `problems` has the table of codes.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commonage.api.problems import MEDIA_TYPE, PROBLEMS, problem, problem_of
from commonage.domain.errors import CommonageError, TooMany
from commonage.wire.reasons import Problem

log = logging.getLogger(__name__)

# The code for a field that has the wrong type or form.
_CODE_OF_FIELD = {
    "memory_mib": "invalid-memory",
    "vram_mib": "invalid-memory",
    "cpus": "invalid-cpus",
    "gpus": "invalid-gpus",
    "time_limit_s": "invalid-time",
    "grace_s": "invalid-time",
    "backoff_s": "invalid-time",
    "name": "invalid-name",
    "command": "invalid-command",
    "array": "invalid-array",
    "nodes": "invalid-array",
    "bundle": "invalid-bundle",
    "cursor": "invalid-cursor",
}
_QUANTITIES = {"invalid-memory", "invalid-cpus", "invalid-gpus", "invalid-time"}
_NOT_JSON = "json_invalid"
_PLAIN = {"missing": "is missing", "list_type": "must be a list", "dict_type": "must be an object with names"}
_RETRY_AFTER_S = "1"


def install(api: FastAPI) -> None:
    """Answer every failure of this application with a problem document."""
    api.add_exception_handler(CommonageError, _commonage_error)
    api.add_exception_handler(ValidationError, _invalid_input)
    api.add_exception_handler(RequestValidationError, _invalid_input)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_middleware(Unexpected)


def answer(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    content = document.model_dump_json(exclude_none=True).encode()
    kept = {"Cache-Control": "no-store", **(headers or {})}
    if document.status == 401:
        kept["WWW-Authenticate"] = 'Bearer realm="commonage"'
    if document.status == 503 and document.retryable:
        kept["Retry-After"] = _RETRY_AFTER_S
    return Response(content, document.status, kept, MEDIA_TYPE)


def of_error(error: CommonageError) -> Response:
    wait_s = error.retry_after_s if isinstance(error, TooMany) else None
    return answer(problem_of(error), None if wait_s is None else {"Retry-After": str(math.ceil(wait_s))})


async def _commonage_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CommonageError)
    return of_error(error)


async def _invalid_input(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError | RequestValidationError)
    return answer(of_validation(error.errors()))


def of_validation(found: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem document for pydantic's errors: the code of the first one, and all of them in `errors`."""
    # A field of several types has an error for each of them; one per field and code is enough.
    errors: dict[tuple[str | None, str], dict[str, Any]] = {}
    for one in map(_field_error, found):
        errors.setdefault((one["field"], one["code"]), one)
    first, *_ = every = list(errors.values())
    return problem(PROBLEMS[first["code"]], first["detail"], field=first["field"], errors=every[:20])


def _field_error(found: Mapping[str, Any]) -> dict[str, Any]:
    """The field of one error (None for the whole body), its code and its text."""
    kind, location = str(found["type"]), list(found["loc"])
    if kind == _NOT_JSON:
        why = found.get("ctx", {}).get("error", found["msg"])
        return {"field": None, "code": "invalid-json", "detail": f"the body is not JSON: {why}"}
    in_url = bool(location) and location[0] in ("query", "header", "path")
    if in_url or (location and location[0] == "body"):
        location = location[1:]
    # pydantic appends the member of a union to the field; the client knows only the field.
    field = ".".join(str(part) for part in location if not _names_a_type(part)) or None
    head = str(location[0]) if location else ""
    if kind == "extra_forbidden":
        kind_of_name = "parameter" if in_url else "field"
        return {"field": field, "code": "unknown-field", "detail": f"unknown {kind_of_name} {_short(head)!r}"}
    code = _CODE_OF_FIELD.get(head) or ("invalid-parameter" if in_url else "invalid-input")
    if code in _QUANTITIES and kind != "string_too_long":
        return {
            "field": field,
            "code": code,
            "detail": f"{field}: {_short(found['input'])!r}. {PROBLEMS[code].meaning}",
        }
    return {"field": field, "code": code, "detail": f"{field or 'the body'}: {_sentence(kind, found)}"}


def _names_a_type(part: object) -> bool:
    """True for parts that pydantic adds to a location, which are not in the input."""
    return part in ("str", "int", "float", "constrained-str", "constrained-int", "[key]")


def _sentence(kind: str, found: Mapping[str, Any]) -> str:
    """The text of the error, with the numbers that pydantic leaves out."""
    context = found.get("ctx") or {}
    value = found.get("input")
    if kind == "string_too_long" and isinstance(value, str):
        return f"{len(value)} characters; at most {context['max_length']} are allowed"
    if kind == "too_long":
        return f"{context.get('actual_length', 'too many')} entries; at most {context['max_length']} are allowed"
    if kind == "string_pattern_mismatch":
        return f"{_short(value)!r} has characters that are not allowed, or the wrong form"
    if kind in _PLAIN:
        return _PLAIN[kind]
    shown = "" if isinstance(value, dict | list) or value is None else f", not {_short(value)!r}"
    message = str(found["msg"])
    return f"{message[:1].lower()}{message[1:]}{shown}"


def _short(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors of the router: an unknown path or method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        methods = _methods_at(request)
        detail = f"the method {request.method[:20]} is not allowed here; allowed: {', '.join(methods)}"
        return answer(problem(PROBLEMS["method-not-allowed"], detail), {"Allow": ", ".join(methods)})
    if error.status_code == 404:
        return answer(problem(PROBLEMS["not-found"], f"unknown path: {_short(request.url.path)}"))
    return answer(problem(PROBLEMS["invalid-input"], str(error.detail)))


def _methods_at(request: Request) -> list[str]:
    """All methods of the routes at this path."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


class Unexpected:
    """The outermost layer: logs an unexpected exception under an id, and answers only with that id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:  # the client gets only the id
            fault = secrets.token_hex(6)
            log.exception("internal error %s at %s %s", fault, scope.get("method"), scope.get("path"))
            if begun:
                raise  # too late for a response: the connection breaks
            detail = f"internal error of the server; an admin finds it in the server's log under {fault}"
            await answer(problem(PROBLEMS["internal"], detail))(scope, receive, send)
