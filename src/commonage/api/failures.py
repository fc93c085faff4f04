"""How what goes wrong becomes a problem document: our own errors, bad input, wrong addresses, and what nobody expected.

Installed on the API by `app`. The table of codes stands in `problems`.
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
from commonage.wire.workloads import Problem

log = logging.getLogger(__name__)

# What a body's field is about decides the code where it does not even have the right shape.
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
    """Have every failure of this application answered with a problem document."""
    api.add_exception_handler(CommonageError, _ours)
    api.add_exception_handler(ValidationError, _bad_input)
    api.add_exception_handler(RequestValidationError, _bad_input)
    api.add_exception_handler(HTTPException, _http)
    api.add_middleware(Unexpected)


def answer(document: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The response that carries this problem."""
    content = document.model_dump_json(exclude_none=True).encode()
    kept = {"Cache-Control": "no-store", **(headers or {})}
    if document.status == 401:
        kept["WWW-Authenticate"] = 'Bearer realm="commonage"'
    if document.status == 503 and document.retryable:
        kept["Retry-After"] = _RETRY_AFTER_S
    return Response(content, document.status, kept, MEDIA_TYPE)


def of_error(error: CommonageError) -> Response:
    """The response to one of our errors."""
    wait_s = error.retry_after_s if isinstance(error, TooMany) else None
    return answer(problem_of(error), None if wait_s is None else {"Retry-After": str(math.ceil(wait_s))})


async def _ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CommonageError)
    return of_error(error)


async def _bad_input(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError | RequestValidationError)
    return answer(of_validation(error.errors()))


def of_validation(found: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem document of what pydantic found: the first culprit's code, and all of them in `errors`."""
    culprits: list[dict[str, Any]] = []
    for one in found:
        culprit = _culprit(one)
        # A field that may be of several types has a complaint from each; one is enough.
        if all((culprit["field"], culprit["code"]) != (known["field"], known["code"]) for known in culprits):
            culprits.append(culprit)
    first = culprits[0]
    return problem(PROBLEMS[first["code"]], first["detail"], field=first["field"], errors=culprits[:20])


def _culprit(found: Mapping[str, Any]) -> dict[str, Any]:
    """One thing wrong with the input: its field (None for the whole), code and sentence."""
    kind, location = str(found["type"]), list(found["loc"])
    if kind == _NOT_JSON:
        why = found.get("ctx", {}).get("error", found["msg"])
        return {"field": None, "code": "invalid-json", "detail": f"the body is not JSON: {why}"}
    in_url = bool(location) and location[0] in ("query", "header", "path")
    if in_url or (location and location[0] == "body"):
        location = location[1:]
    # A union names its members behind the field; the field is what the caller knows.
    field = ".".join(str(part) for part in location if not _names_a_type(part)) or None
    head = str(location[0]) if location else ""
    if kind == "extra_forbidden":
        what = "parameter" if in_url else "field"
        return {"field": field, "code": "unknown-field", "detail": f"there is no {what} {_short(head)!r}"}
    code = _CODE_OF_FIELD.get(head) or ("invalid-parameter" if in_url else "invalid-input")
    if code in _QUANTITIES:
        return {
            "field": field,
            "code": code,
            "detail": f"{field}: {_short(found['input'])!r}. {PROBLEMS[code].meaning}",
        }
    return {"field": field, "code": code, "detail": f"{field or 'the body'}: {_sentence(kind, found)}"}


def _names_a_type(part: object) -> bool:
    """True for what pydantic adds to a location that is no part of the input."""
    return part in ("str", "int", "float", "constrained-str", "constrained-int", "[key]")


def _sentence(kind: str, found: Mapping[str, Any]) -> str:
    """What is wrong, with numbers where pydantic leaves them out."""
    context = found.get("ctx") or {}
    value = found.get("input")
    if kind == "string_too_long" and isinstance(value, str):
        return f"{len(value)} characters; at most {context['max_length']} are allowed"
    if kind == "too_long":
        return f"{context.get('actual_length', 'too many')} entries; at most {context['max_length']} are allowed"
    if kind == "string_pattern_mismatch":
        return f"{_short(value)!r} has characters that are not allowed, or not the right form"
    if kind in _PLAIN:
        return _PLAIN[kind]
    shown = "" if isinstance(value, dict | list) or value is None else f", not {_short(value)!r}"
    message = str(found["msg"])
    return f"{message[:1].lower()}{message[1:]}{shown}"


def _short(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


async def _http(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an address that leads nowhere, a method that is not there."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        methods = _methods_at(request)
        detail = f"{request.method[:20]} cannot be done here; there is {', '.join(methods)}"
        return answer(problem(PROBLEMS["method-not-allowed"], detail), {"Allow": ", ".join(methods)})
    if error.status_code == 404:
        return answer(problem(PROBLEMS["not-found"], f"there is nothing at {_short(request.url.path)}"))
    return answer(problem(PROBLEMS["invalid-input"], str(error.detail)))


def _methods_at(request: Request) -> list[str]:
    """All methods of the routes at this address."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


class Unexpected:
    """The outermost layer: what nobody expected is logged under an id, and answered with that id and no more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:  # whatever it is, the caller gets an answer and the log gets the rest
            fault = secrets.token_hex(6)
            log.exception("fault %s at %s %s", fault, scope.get("method"), scope.get("path"))
            if begun:
                raise  # too late for an answer: the connection breaks, and the client sees that
            detail = f"this is a fault of the server; its admin finds it in the log under {fault}"
            await answer(problem(PROBLEMS["internal"], detail))(scope, receive, send)
