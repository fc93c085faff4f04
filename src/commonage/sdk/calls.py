"""Calls of the API as plain data, their paths, and the rules for retries. No I/O; used by both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from commonage.sdk.errors import GATEWAY, ApiError
from commonage.wire.hub import API_PATH

Answer = TypeVar("Answer", bound=BaseModel)

JSON = "application/json"
STREAM = "text/event-stream"
# The server sends a heartbeat every 15 seconds; after this time without one, the stream counts as broken.
STREAM_TIMEOUT_S = 45.0


class WorkloadFilter(TypedDict, total=False):
    """Filter for workloads; omitted keys match all. `text` is part of a name or the start of an id."""

    owner: str
    kind: str
    state: Sequence[str]
    node: str
    environment: str
    array: str
    cron_job: str
    text: str


@dataclass(frozen=True, slots=True)
class Executed:
    """Exit code and output of a command in a workload."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `repeatable`: it is idempotent, so it may be sent again if the response was lost."""

    method: str
    path: str
    answer: type[Answer]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: BaseModel | None = None
    version: str = ""  # sent as If-Match
    repeatable: bool = True

    def parse(self, status: int, body: bytes, retry_after: str | None) -> Answer:
        """The response as a message; `retry_after` is the header of that name. Raises ApiError for an error."""
        if not 200 <= status < 300:
            raise ApiError.of(status, body, retry_after)
        try:
            return self.answer.model_validate_json(body)
        except ValueError:
            raise ApiError(
                "not-commonage", "the response does not come from Commonage; is the address right?", status=status
            ) from None


class Backoff:
    """Retry pauses: they double up to two seconds, until their sum reaches `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        self._waited, self._next = 0.0, 0.1

    def pause_after(self, error: ApiError) -> float:
        """Seconds to wait before the next try; raises `error` if the time is over."""
        requested = _requested_pause(error)
        if self._waited >= self._seconds or requested > self._seconds:
            raise error
        pause, self._next = max(requested, self._next), min(2.0, self._next * 2)
        self._waited += pause
        return pause


def may_repeat(repeatable: bool, error: ApiError, reached: bool) -> bool:
    """True if the call may be sent again after `error`. `reached`: the server may have seen it."""
    if _requested_pause(error):
        return True  # refused before any effect
    return error.retryable and (repeatable or not reached) and (error.status == 0 or error.status in GATEWAY)


def _requested_pause(error: ApiError) -> float:
    """Seconds that the server requests before the next try, if it got too many requests."""
    return error.retry_after_s or 0.0 if error.status == 429 else 0.0


def address(url: str) -> str:
    """The URL of the API, from that of the installation (or of the API itself)."""
    return url.rstrip("/").removesuffix(API_PATH) + API_PATH


def given(**query: Any) -> dict[str, Any]:
    """The given values: without None and empty tuples."""
    return {name: value for name, value in query.items() if value is not None and value != ()}


def workload_path(workload_id: str, *rest: str) -> str:
    return "/".join(["/workloads", quote(workload_id, safe=""), *rest])


def node_path(site: str, name: str, *rest: str) -> str:
    return "/".join(["/nodes", quote(site, safe=""), quote(name, safe=""), *rest])


def resource_path(kind: str, name: str) -> str:
    return "/".join(["/resources", quote(kind, safe=""), quote(name, safe="")])


def class_path(name: str) -> str:
    return f"/classes/{quote(name, safe='')}"


def site_path(name: str, *rest: str) -> str:
    return "/".join(["/sites", quote(name, safe=""), *rest])


def material_path(name: str, *rest: str) -> str:
    return "/".join(["/materials", quote(name, safe=""), *rest])


def events_path(workload_id: str | None) -> str:
    """The path of all visible events, or of those of one workload."""
    return "/events" if workload_id is None else workload_path(workload_id, "events")


def image_path(name: str) -> str:
    """The path of an image: `TENANT` and `NAME:TAG` are separate parts."""
    scope, slash, rest = name.partition("/")
    if not slash or not scope.strip(".") or not rest.strip(".") or "/" in rest:
        words = f"{name!r} is not the name of an image; write TENANT/NAME or TENANT/NAME:TAG, like lab/torch:2.4"
        raise ApiError("invalid-image", words, status=422)
    return f"/images/{quote(scope, safe='')}/{quote(rest, safe='')}"
