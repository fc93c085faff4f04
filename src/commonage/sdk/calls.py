"""Every call of the API as plain data, without I/O. Both clients send these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from commonage.sdk.errors import GATEWAY, ApiError
from commonage.wire.environments import EnvironmentList, LaunchOptions, VolumeList
from commonage.wire.events import EventPage, MetricsOut
from commonage.wire.hub import API_PATH
from commonage.wire.images import (
    CollectedOut,
    ImageIn,
    ImageList,
    ImageNameIn,
    ImageNameOut,
    ImageOut,
    PrepullIn,
    RegistryOut,
    RemovedOut,
)
from commonage.wire.installation import HealthOut, InfoOut, TokenIn, TokenOut
from commonage.wire.nodes import DoneOut, JoinKitOut, JoinTokenIn, JoinTokenOut, NodeList, NodeOut, NodePoolList
from commonage.wire.tenants import ReservationIn, ReservationList, ReservationOut, ReservedOut, TenantList
from commonage.wire.usage import UsageOut
from commonage.wire.workloads import AttemptList, ExplanationOut, StopIn, SubmitIn, SubmitOut, WorkloadOut, WorkloadPage

Answer = TypeVar("Answer", bound=BaseModel)

JSON = "application/json"
STREAM = "text/event-stream"
# The server sends a heartbeat every 15 seconds; after this time without one, the stream counts as broken.
STREAM_TIMEOUT_S = 45.0
_TOO_MANY = 429


class WorkloadFilter(TypedDict, total=False):
    """Filter for workloads; omitted keys match all. `text` is part of a name or the start of an id."""

    owner: str
    kind: str
    state: Sequence[str]
    node: str
    environment: str
    array: str
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
    repeatable: bool = True

    @property
    def content(self) -> bytes | None:
        """The body as JSON, without unset fields."""
        return None if self.body is None else self.body.model_dump_json(exclude_unset=True).encode()

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
        """Start over after a success."""
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
    return error.retry_after_s or 0.0 if error.status == _TOO_MANY else 0.0


def address(url: str) -> str:
    """The URL of the API, from that of the installation (or of the API itself)."""
    return url.rstrip("/").removesuffix(API_PATH) + API_PATH


def given(**query: Any) -> dict[str, Any]:
    """The given values: without None and empty tuples."""
    return {name: value for name, value in query.items() if value is not None and value != ()}


def workload_path(workload_id: str, *rest: str) -> str:
    """The path of a workload or of a resource below it."""
    return "/".join(["/workloads", quote(workload_id, safe=""), *rest])


def submit(ask: SubmitIn) -> Call[SubmitOut]:
    """Submit a workload; idempotent only with a key."""
    return Call("POST", "/workloads", SubmitOut, body=ask, repeatable=ask.key is not None)


def dry_run(ask: SubmitIn) -> Call[ExplanationOut]:
    """Explain a submission without creating it."""
    return Call("POST", "/workloads/dry-run", ExplanationOut, body=ask)


def workload(workload_id: str) -> Call[WorkloadOut]:
    """One workload."""
    return Call("GET", workload_path(workload_id), WorkloadOut)


def workload_page(which: WorkloadFilter, limit: int, cursor: str | None, counts: bool) -> Call[WorkloadPage]:
    """A page of workloads."""
    query = given(**which, limit=limit, cursor=cursor, counts="true" if counts else None)
    return Call("GET", "/workloads", WorkloadPage, query)


def stop(workload_id: str, reason: str) -> Call[WorkloadOut]:
    """Stop a workload. Not repeatable: a second request fails if it has ended."""
    return Call("POST", workload_path(workload_id, "stop"), WorkloadOut, body=StopIn(reason=reason), repeatable=False)


def explain(workload_id: str) -> Call[ExplanationOut]:
    """Explain why a workload waits."""
    return Call("GET", workload_path(workload_id, "explanation"), ExplanationOut)


def attempts(workload_id: str) -> Call[AttemptList]:
    """The attempts of a workload."""
    return Call("GET", workload_path(workload_id, "attempts"), AttemptList)


def workload_usage(workload_id: str) -> Call[UsageOut]:
    """The usage of a workload."""
    return Call("GET", workload_path(workload_id, "usage"), UsageOut)


def workload_metrics(workload_id: str, since: float | None, until: float | None, points: int) -> Call[MetricsOut]:
    """The metrics of a workload."""
    return Call(
        "GET", workload_path(workload_id, "metrics"), MetricsOut, given(since=since, until=until, points=points)
    )


def node_metrics(site: str, name: str, since: float | None, until: float | None, points: int) -> Call[MetricsOut]:
    """The metrics of a node and its GPUs."""
    return Call("GET", node_path(site, name, "metrics"), MetricsOut, given(since=since, until=until, points=points))


def node_path(site: str, name: str, *what: str) -> str:
    """The path of a node or of a resource below it."""
    return "/".join(["/nodes", quote(site, safe=""), quote(name, safe=""), *what])


def event_page(workload_id: str | None, after: int, limit: int) -> Call[EventPage]:
    """A page of events."""
    return Call("GET", events_path(workload_id), EventPage, {"after": after, "limit": limit})


def events_path(workload_id: str | None) -> str:
    """The path of all visible events, or of those of one workload."""
    return "/events" if workload_id is None else workload_path(workload_id, "events")


def nodes() -> Call[NodeList]:
    """The nodes."""
    return Call("GET", "/nodes", NodeList)


def drain(site: str, name: str, requeue: bool, by: str | None, time_zone: str | None) -> Call[NodeOut]:
    """Drain a node."""
    query = given(requeue=True if requeue else None, by=by, time_zone=time_zone)
    return Call("POST", node_path(site, name, "drain"), NodeOut, query)


def remove_node(site: str, name: str, force: bool) -> Call[DoneOut]:
    """Remove a node. Not repeatable: a second request fails."""
    query = given(force=True if force else None)
    return Call("DELETE", node_path(site, name), DoneOut, query, repeatable=False)


def resume(site: str, name: str, gpu: str | None) -> Call[NodeOut]:
    """Resume a node, or clear the faults of one GPU."""
    return Call("POST", node_path(site, name, "resume"), NodeOut, given(gpu=gpu))


def join_token(for_s: int, cloud_init: bool, options: Sequence[str]) -> Call[JoinTokenOut]:
    """Create a join token."""
    ask = JoinTokenIn(for_s=for_s, cloud_init=cloud_init, options=list(options))
    return Call("POST", "/join-tokens", JoinTokenOut, body=ask)


def revoke_join_tokens() -> Call[DoneOut]:
    """Revoke all join tokens."""
    return Call("DELETE", "/join-tokens", DoneOut)


def join_kit() -> Call[JoinKitOut]:
    """The files for a join over SSH."""
    return Call("GET", "/join-kit", JoinKitOut)


def environments() -> Call[EnvironmentList]:
    """The environments of the catalogue."""
    return Call("GET", "/environments", EnvironmentList)


def volumes() -> Call[VolumeList]:
    """The volumes."""
    return Call("GET", "/volumes", VolumeList)


def images() -> Call[ImageList]:
    """The images of the catalogue."""
    return Call("GET", "/images", ImageList)


def image(name: str) -> Call[ImageOut]:
    """One image."""
    return Call("GET", image_path(name), ImageOut)


def check_image_name(name: str) -> Call[ImageNameOut]:
    """Check the name of an image."""
    return Call("POST", "/images/dry-run", ImageNameOut, body=ImageNameIn(name=name))


def register_image(ask: ImageIn) -> Call[ImageOut]:
    """Register an image; idempotent."""
    return Call("POST", "/images", ImageOut, body=ask)


def remove_image(name: str) -> Call[RemovedOut]:
    """Remove an image from the catalogue. Not repeatable: a second request fails."""
    return Call("DELETE", image_path(name), RemovedOut, repeatable=False)


def prepull(name: str, nodes: Sequence[str]) -> Call[ImageOut]:
    """Pull an image on nodes."""
    return Call("POST", f"{image_path(name)}/prepull", ImageOut, body=PrepullIn(nodes=list(nodes)))


def image_path(name: str) -> str:
    """The path of an image: `TENANT` and `NAME:TAG` are separate parts."""
    scope, slash, rest = name.partition("/")
    if not slash or not scope.strip(".") or not rest.strip(".") or "/" in rest:
        words = f"{name!r} is not the name of an image; write TENANT/NAME or TENANT/NAME:TAG, like lab/torch:2.4"
        raise ApiError("invalid-image", words, status=422)
    return f"/images/{quote(scope, safe='')}/{quote(rest, safe='')}"


def usage(since: float | None, until: float | None, by: str) -> Call[UsageOut]:
    """The usage in a time span."""
    return Call("GET", "/usage", UsageOut, given(since=since, until=until, by=by))


def registry() -> Call[RegistryOut]:
    """The site's image registry."""
    return Call("GET", "/registry", RegistryOut)


def collect_registry() -> Call[CollectedOut]:
    """Delete unused images from the registry."""
    return Call("POST", "/registry/collect", CollectedOut)


def info() -> Call[InfoOut]:
    """The installation and the caller's identity."""
    return Call("GET", "/info", InfoOut)


def health() -> Call[HealthOut]:
    """The health of the control plane."""
    return Call("GET", "/health", HealthOut)


def launch_options(user: str | None, groups: Sequence[str]) -> Call[LaunchOptions]:
    """The options for a new workload."""
    return Call("GET", "/launch-options", LaunchOptions, given(user=user, group=tuple(groups)))


def token(ask: TokenIn) -> Call[TokenOut]:
    """Create a token."""
    return Call("POST", "/tokens", TokenOut, body=ask, repeatable=False)


def tenants() -> Call[TenantList]:
    """The tenants."""
    return Call("GET", "/tenants", TenantList)


def node_pools() -> Call[NodePoolList]:
    """The node pools."""
    return Call("GET", "/node-pools", NodePoolList)


def reservations() -> Call[ReservationList]:
    """The reservations."""
    return Call("GET", "/reservations", ReservationList)


def reserve(ask: ReservationIn) -> Call[ReservedOut]:
    """Create a reservation. Not repeatable: a second request creates another."""
    return Call("POST", "/reservations", ReservedOut, body=ask, repeatable=False)


def unreserve(reservation_id: str) -> Call[ReservationOut]:
    """Cancel a reservation. Not repeatable: a second request fails."""
    return Call("DELETE", f"/reservations/{quote(reservation_id, safe='')}", ReservationOut, repeatable=False)
