"""Every call of the API as plain data, without any I/O: the two clients send these and differ in nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from commonage.sdk.errors import GATEWAY, ApiError
from commonage.wire.hub import API_PATH
from commonage.wire.images import ImageIn, ImageList, ImageNameIn, ImageNameOut, ImageOut, PrepullIn, RemovedOut
from commonage.wire.joining import DoneOut, JoinKitOut, JoinTokenIn, JoinTokenOut
from commonage.wire.node_pools import NodePoolList
from commonage.wire.platform import (
    EnvironmentList,
    HealthOut,
    InfoOut,
    LaunchOptions,
    NodeList,
    NodeOut,
    TokenIn,
    TokenOut,
    UsageOut,
)
from commonage.wire.registry import CollectedOut, RegistryOut
from commonage.wire.tenants import ReservationIn, ReservationList, ReservationOut, ReservedOut, TenantList
from commonage.wire.volumes import VolumeList
from commonage.wire.workloads import (
    AttemptList,
    EventPage,
    ExplanationOut,
    MetricsOut,
    StopIn,
    SubmitIn,
    SubmitOut,
    WorkloadOut,
    WorkloadPage,
)

Answer = TypeVar("Answer", bound=BaseModel)

JSON = "application/json"
STREAM = "text/event-stream"
# The server sends a sign of life every 15 seconds; without one for so long, the stream is taken for dead.
SILENCE_S = 45.0
_TOO_MANY = 429


class Which(TypedDict, total=False):
    """Which workloads; what is left out matches all. `text` is part of a name or the start of an id."""

    owner: str
    kind: str
    state: Sequence[str]
    node: str
    environment: str
    array: str
    text: str


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of a command beside a workload."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `repeatable`: doing it twice is doing it once, so it may be sent again when the answer got lost."""

    method: str
    path: str
    answer: type[Answer]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: BaseModel | None = None
    repeatable: bool = True

    @property
    def content(self) -> bytes | None:
        """The body as JSON, without what was not set."""
        return None if self.body is None else self.body.model_dump_json(exclude_unset=True).encode()

    def parse(self, status: int, body: bytes, retry_after: str | None) -> Answer:
        """The answer as a message; `retry_after` is the header of that name. Raises ApiError when it is none."""
        if not 200 <= status < 300:
            raise ApiError.of(status, body, retry_after)
        try:
            return self.answer.model_validate_json(body)
        except ValueError:
            raise ApiError(
                "not-commonage", "the answer is not Commonage's; is the address right?", status=status
            ) from None


class Patience:
    """How long to go on trying: pauses that double up to two seconds, until `seconds` have been waited."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """It went well: begin anew."""
        self._waited, self._next = 0.0, 0.1

    def pause_after(self, error: ApiError) -> float:
        """Seconds to wait before the next try; raises `error` when patience is over."""
        asked = _asked_pause(error)
        if self._waited >= self._seconds or asked > self._seconds:
            raise error
        pause, self._next = max(asked, self._next), min(2.0, self._next * 2)
        self._waited += pause
        return pause


def may_repeat(repeatable: bool, error: ApiError, reached: bool) -> bool:
    """True if the call may be sent again after `error`. `reached`: the server may have seen it."""
    if _asked_pause(error):
        return True  # it was refused before anything was done
    return error.retryable and (repeatable or not reached) and (error.status == 0 or error.status in GATEWAY)


def _asked_pause(error: ApiError) -> float:
    """Seconds that a client which asks too often is told to wait."""
    return error.retry_after_s or 0.0 if error.status == _TOO_MANY else 0.0


def address(url: str) -> str:
    """The API's address from that of the installation (or of the API itself)."""
    return url.rstrip("/").removesuffix(API_PATH) + API_PATH


def given(**query: Any) -> dict[str, Any]:
    """Only what was given: no None, no empty list."""
    return {name: value for name, value in query.items() if value is not None and value != ()}


def workload_path(workload_id: str, *rest: str) -> str:
    """The path of a workload or of something of it."""
    return "/".join(["/workloads", quote(workload_id, safe=""), *rest])


def submit(ask: SubmitIn) -> Call[SubmitOut]:
    """Only with a key of the client's own is it the same workload the second time."""
    return Call("POST", "/workloads", SubmitOut, body=ask, repeatable=ask.key is not None)


def dry_run(ask: SubmitIn) -> Call[ExplanationOut]:
    """Ask what would become of it."""
    return Call("POST", "/workloads/dry-run", ExplanationOut, body=ask)


def workload(workload_id: str) -> Call[WorkloadOut]:
    """One workload."""
    return Call("GET", workload_path(workload_id), WorkloadOut)


def workload_page(which: Which, limit: int, cursor: str | None, counts: bool) -> Call[WorkloadPage]:
    """A page of the list."""
    query = given(**which, limit=limit, cursor=cursor, counts="true" if counts else None)
    return Call("GET", "/workloads", WorkloadPage, query)


def stop(workload_id: str, reason: str) -> Call[WorkloadOut]:
    """End it. Not repeated blindly: the second time it may have ended, which is an error."""
    return Call("POST", workload_path(workload_id, "stop"), WorkloadOut, body=StopIn(reason=reason), repeatable=False)


def explain(workload_id: str) -> Call[ExplanationOut]:
    """Why it waits."""
    return Call("GET", workload_path(workload_id, "explanation"), ExplanationOut)


def attempts(workload_id: str) -> Call[AttemptList]:
    """Its tries."""
    return Call("GET", workload_path(workload_id, "attempts"), AttemptList)


def workload_usage(workload_id: str) -> Call[UsageOut]:
    """What it used."""
    return Call("GET", workload_path(workload_id, "usage"), UsageOut)


def workload_metrics(workload_id: str, since: float | None, until: float | None, points: int) -> Call[MetricsOut]:
    """What it measured."""
    return Call(
        "GET", workload_path(workload_id, "metrics"), MetricsOut, given(since=since, until=until, points=points)
    )


def node_metrics(site: str, name: str, since: float | None, until: float | None, points: int) -> Call[MetricsOut]:
    """What a node and its GPUs measured."""
    return Call("GET", node_path(site, name, "metrics"), MetricsOut, given(since=since, until=until, points=points))


def node_path(site: str, name: str, *what: str) -> str:
    """The path of a node or of something of it."""
    return "/".join(["/nodes", quote(site, safe=""), quote(name, safe=""), *what])


def event_page(workload_id: str | None, after: int, limit: int) -> Call[EventPage]:
    """Some of what happened."""
    return Call("GET", events_path(workload_id), EventPage, {"after": after, "limit": limit})


def events_path(workload_id: str | None) -> str:
    """Where events are: everybody's that one may see, or one workload's."""
    return "/events" if workload_id is None else workload_path(workload_id, "events")


def nodes() -> Call[NodeList]:
    """The nodes."""
    return Call("GET", "/nodes", NodeList)


def drain(site: str, name: str, requeue: bool, by: str | None, time_zone: str | None) -> Call[NodeOut]:
    """Let a node take no more work, and say what becomes of the work there."""
    query = given(requeue=True if requeue else None, by=by, time_zone=time_zone)
    return Call("POST", node_path(site, name, "drain"), NodeOut, query)


def remove_node(site: str, name: str, force: bool) -> Call[DoneOut]:
    """Know a node no more. The second time there is none, which is an error."""
    query = given(force=True if force else None)
    return Call("DELETE", node_path(site, name), DoneOut, query, repeatable=False)


def resume(site: str, name: str, gpu: str | None) -> Call[NodeOut]:
    """Let a node take work again, or forget the faults of one GPU."""
    return Call("POST", node_path(site, name, "resume"), NodeOut, given(gpu=gpu))


def join_token(for_s: int, cloud_init: bool, options: Sequence[str]) -> Call[JoinTokenOut]:
    """A token with which nodes join."""
    ask = JoinTokenIn(for_s=for_s, cloud_init=cloud_init, options=list(options))
    return Call("POST", "/join-tokens", JoinTokenOut, body=ask)


def revoke_join_tokens() -> Call[DoneOut]:
    """No token that was made until now is good any more."""
    return Call("DELETE", "/join-tokens", DoneOut)


def join_kit() -> Call[JoinKitOut]:
    """What to bring to a machine that joins."""
    return Call("GET", "/join-kit", JoinKitOut)


def environments() -> Call[EnvironmentList]:
    """The catalogue."""
    return Call("GET", "/environments", EnvironmentList)


def volumes() -> Call[VolumeList]:
    """Data that workloads may have."""
    return Call("GET", "/volumes", VolumeList)


def images() -> Call[ImageList]:
    """The images of the catalogue."""
    return Call("GET", "/images", ImageList)


def image(name: str) -> Call[ImageOut]:
    """One of them."""
    return Call("GET", image_path(name), ImageOut)


def check_image_name(name: str) -> Call[ImageNameOut]:
    """Whether an image may be pushed under this name."""
    return Call("POST", "/images/dry-run", ImageNameOut, body=ImageNameIn(name=name))


def register_image(ask: ImageIn) -> Call[ImageOut]:
    """Have the catalogue know an image. Doing it twice is doing it once."""
    return Call("POST", "/images", ImageOut, body=ask)


def remove_image(name: str) -> Call[RemovedOut]:
    """Take an image out of the catalogue. The second time there is none, which is an error."""
    return Call("DELETE", image_path(name), RemovedOut, repeatable=False)


def prepull(name: str, nodes: Sequence[str]) -> Call[ImageOut]:
    """Bring an image to nodes."""
    return Call("POST", f"{image_path(name)}/prepull", ImageOut, body=PrepullIn(nodes=list(nodes)))


def image_path(name: str) -> str:
    """Where an image is: `TENANT/NAME:TAG` are two parts of the path."""
    scope, slash, rest = name.partition("/")
    if not slash or not scope.strip(".") or not rest.strip(".") or "/" in rest:
        words = f"{name!r} is not the name of an image; write TENANT/NAME or TENANT/NAME:TAG, like lab/torch:2.4"
        raise ApiError("invalid-image", words, status=422)
    return f"/images/{quote(scope, safe='')}/{quote(rest, safe='')}"


def usage(since: float | None, until: float | None, by: str) -> Call[UsageOut]:
    """What was used."""
    return Call("GET", "/usage", UsageOut, given(since=since, until=until, by=by))


def registry() -> Call[RegistryOut]:
    """The site's registry of images."""
    return Call("GET", "/registry", RegistryOut)


def collect_registry() -> Call[CollectedOut]:
    """Throw out of the registry what nobody needs."""
    return Call("POST", "/registry/collect", CollectedOut)


def info() -> Call[InfoOut]:
    """This installation and who one is to it."""
    return Call("GET", "/info", InfoOut)


def health() -> Call[HealthOut]:
    """Whether it works."""
    return Call("GET", "/health", HealthOut)


def launch_options(user: str | None, groups: Sequence[str]) -> Call[LaunchOptions]:
    """What one may have, and what is free now."""
    return Call("GET", "/launch-options", LaunchOptions, given(user=user, group=tuple(groups)))


def token(ask: TokenIn) -> Call[TokenOut]:
    """A new token."""
    return Call("POST", "/tokens", TokenOut, body=ask, repeatable=False)


def tenants() -> Call[TenantList]:
    """Who shares the nodes."""
    return Call("GET", "/tenants", TenantList)


def node_pools() -> Call[NodePoolList]:
    """Nodes that are rented."""
    return Call("GET", "/node_pools", NodePoolList)


def reservations() -> Call[ReservationList]:
    """What is kept for whom."""
    return Call("GET", "/reservations", ReservationList)


def reserve(ask: ReservationIn) -> Call[ReservedOut]:
    """Keep room. Asking twice would make two."""
    return Call("POST", "/reservations", ReservedOut, body=ask, repeatable=False)


def unreserve(reservation_id: str) -> Call[ReservationOut]:
    """Take a reservation away. The second time there is none, which is an error."""
    return Call("DELETE", f"/reservations/{quote(reservation_id, safe='')}", ReservationOut, repeatable=False)
