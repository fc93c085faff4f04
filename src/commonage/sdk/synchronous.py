"""The client for scripts and the command line. Generated from `asynchronous.py` by `scripts/sdk.py`."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, Unpack

import httpx2

from commonage.sdk import bundles, calls, transport, waiting
from commonage.sdk.calls import Answer, Backoff, Call, Executed, WorkloadFilter, given, may_repeat
from commonage.sdk.errors import ApiError
from commonage.wire.environments import EnvironmentOut, LaunchOptions, VolumeList
from commonage.wire.events import EventOut, EventPage, LogLineOut, MetricsOut
from commonage.wire.images import CollectedOut, ImageIn, ImageNameOut, ImageOut, RegistryOut, RemovedOut
from commonage.wire.installation import HealthOut, InfoOut, TokenIn, TokenOut
from commonage.wire.nodes import JoinKitOut, JoinTokenOut, NodeOut, NodePoolOut
from commonage.wire.tenants import ReservationIn, ReservationOut, ReservedOut, TenantOut
from commonage.wire.usage import UsageOut
from commonage.wire.workloads import (
    AttemptOut,
    BundleOut,
    ExplanationOut,
    SubmitIn,
    SubmitOut,
    WorkloadOut,
    WorkloadPage,
)


class Client:
    """`url` is the address of the installation (`http://127.0.0.1:8000`), `token` a hub token.

    Every call raises ApiError: a refusal with its `code`, or Unreachable after `reconnect_timeout_s` seconds of
    retries.
    Only calls that may safely be sent twice are retried. Use it as a context manager, or close it at the end.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        reconnect_timeout_s: float = 10.0,
        timeout_s: float = 60.0,
        http: httpx2.BaseTransport | None = None,
    ) -> None:
        self._reconnect_timeout_s = reconnect_timeout_s
        self._http = httpx2.Client(transport=http, **transport.options(url, token, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- workloads ----------------------------------------------------------------------------------------------

    def submit(self, ask: SubmitIn) -> SubmitOut:
        """Submit a workload or an array. It is durable on return; with `ask.key`, a repeated call is harmless."""
        return self._call(calls.submit(ask))

    def dry_run(self, ask: SubmitIn) -> ExplanationOut:
        """Explain the submission without making it: whether it could start now, otherwise what it would wait for."""
        return self._call(calls.dry_run(ask))

    def workload(self, workload_id: str) -> WorkloadOut:
        """One workload in its current state."""
        return self._call(calls.workload(workload_id))

    def workloads(self, **which: Unpack[WorkloadFilter]) -> Generator[WorkloadOut]:
        """All workloads that match, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.workload_page(limit=200, cursor=cursor, **which)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def workload_page(
        self, *, limit: int = 100, cursor: str | None = None, counts: bool = False, **which: Unpack[WorkloadFilter]
    ) -> WorkloadPage:
        """One page of the workloads that match; `counts` adds the number in each state."""
        return self._call(calls.workload_page(which, limit, cursor, counts))

    def stop(self, workload_id: str, reason: str = "") -> WorkloadOut:
        """Stop a workload. Raises ApiError `already-ended` if it has ended."""
        return self._call(calls.stop(workload_id, reason))

    def execute(self, workload_id: str, command: Sequence[str], *, stdin: bytes = b"") -> Executed:
        """Run a command in a running workload and wait until it ends. For an interactive one: `AsyncClient.exec`."""
        from commonage.sdk import execs  # noqa: PLC0415 (its HTTP client takes long to import)

        return execs.execute(transport.place_of(self._http, workload_id), command, stdin)

    def explain(self, workload_id: str) -> ExplanationOut:
        """Explain why the workload waits, and when it is expected to start."""
        return self._call(calls.explain(workload_id))

    def attempts(self, workload_id: str) -> Sequence[AttemptOut]:
        """All attempts of the workload, oldest first."""
        return self._call(calls.attempts(workload_id)).items

    def workload_usage(self, workload_id: str) -> UsageOut:
        """The resources that the workload has used so far."""
        return self._call(calls.workload_usage(workload_id))

    def workload_metrics(
        self, workload_id: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """Measured CPU, memory and VRAM of a workload. Default: the last hour."""
        return self._call(calls.workload_metrics(workload_id, since, until, points))

    def wait(self, workload_id: str, timeout_s: float | None = None) -> WorkloadOut:
        """Wait until the workload has ended and return it. Raises TimeoutError."""
        return waiting.wait(self, workload_id, timeout_s)

    # --- output and events --------------------------------------------------------------------------------------

    def logs(
        self,
        workload_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        offset: int | None = None,
        tail: int | None = None,
    ) -> Generator[LogLineOut]:
        """The workload's output, line by line; with `follow` until it ends. Resumes where it was if the connection
        breaks.
        """
        query = given(attempt=attempt, tail=tail, follow="true" if follow else "false")
        last_id = None if offset is None else str(offset)
        with closing(self._stream(calls.workload_path(workload_id, "logs"), query, last_id)) as stream:
            for event in stream:
                line = transport.log_line(event)
                if line is not None:
                    yield line

    def events(self, workload_id: str | None = None, *, after: int | None = None) -> Generator[EventOut]:
        """A live stream of events, without end: of one workload, or of all workloads of the user.

        It starts now, or with the first event after the number `after`. It resumes where it was if the connection
        breaks.
        """
        last_id = None if after is None else str(after)
        with closing(self._stream(calls.events_path(workload_id), {}, last_id)) as stream:
            for event in stream:
                item = transport.event_in(event)
                if item is not None:
                    yield item

    def event_page(self, workload_id: str | None = None, *, after: int = 0, limit: int = 500) -> EventPage:
        """Past events after the event number `after`, oldest first."""
        return self._call(calls.event_page(workload_id, after, limit))

    # --- the installation ---------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeOut]:
        """The nodes, their GPUs, and the free resources."""
        return self._call(calls.nodes()).items

    def node_metrics(
        self, site: str, name: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """Measurements of a node and its GPUs. Default: the last hour."""
        return self._call(calls.node_metrics(site, name, since, until, points))

    def drain(
        self, site: str, name: str, *, requeue: bool = False, by: str | None = None, time_zone: str | None = None
    ) -> NodeOut:
        """Drain a node: no workload starts on it any more. For admins.

        With `requeue` its jobs are requeued now. `by` (`2h`, `18:00` in `time_zone`) is when all remaining
        workloads must leave.
        """
        return self._call(calls.drain(site, name, requeue, by, time_zone))

    def remove_node(self, site: str, name: str, *, force: bool = False) -> Sequence[str]:
        """Remove a node that is not ready and runs nothing, and refuse it when it connects again. For admins.

        With `force` the workloads that still count as running on a lost node become lost. Returns the steps taken.
        """
        return self._call(calls.remove_node(site, name, force)).done

    def resume(self, site: str, name: str, *, gpu: str | None = None) -> NodeOut:
        """Let the node accept work again; with `gpu` (index or UUID) clear the faults of that GPU. For admins."""
        return self._call(calls.resume(site, name, gpu))

    def join_token(self, *, for_s: int = 3600, cloud_init: bool = False, options: Sequence[str] = ()) -> JoinTokenOut:
        """A token with which nodes join for a limited number of seconds; optionally with user data for a cloud. For
        admins.
        """
        return self._call(calls.join_token(for_s, cloud_init, options))

    def revoke_join_tokens(self) -> Sequence[str]:
        """Revoke all join tokens made until now. For admins."""
        return self._call(calls.revoke_join_tokens()).done

    def join_kit(self) -> JoinKitOut:
        """The script and the packed program with which a node joins. For admins."""
        return self._call(calls.join_kit())

    def environments(self) -> Sequence[EnvironmentOut]:
        """The environments of the catalogue."""
        return self._call(calls.environments()).items

    def volumes(self) -> VolumeList:
        """The volumes that the user may mount, and the disk space that the user's home takes."""
        return self._call(calls.volumes())

    def images(self) -> Sequence[ImageOut]:
        """The images of the catalogue that the user may see."""
        return self._call(calls.images()).items

    def image(self, name: str) -> ImageOut:
        """One image: its sources, its location, and the number of workloads in it."""
        return self._call(calls.image(name))

    def check_image_name(self, name: str) -> ImageNameOut:
        """Check a name to push an image under. Raises ApiError with the reason if the user may not push it."""
        return self._call(calls.check_image_name(name))

    def register_image(self, ask: ImageIn) -> ImageOut:
        """Register a pushed image in the catalogue."""
        return self._call(calls.register_image(ask))

    def remove_image(self, name: str) -> RemovedOut:
        """Remove an image from the catalogue. Workloads that run in it continue."""
        return self._call(calls.remove_image(name))

    def prepull(self, name: str, nodes: Sequence[str] = ()) -> ImageOut:
        """Pull an image in advance on these nodes, or on all nodes that accept work."""
        return self._call(calls.prepull(name, nodes))

    def usage(self, *, since: float | None = None, until: float | None = None, by: str = "owner") -> UsageOut:
        """Allocated resources within [since, until). Default: the last 30 days."""
        return self._call(calls.usage(since, until, by))

    def tenants(self) -> Sequence[TenantOut]:
        """The tenants with their quotas and allocated resources: the user's own, for admins all."""
        return self._call(calls.tenants()).items

    def node_pools(self) -> Sequence[NodePoolOut]:
        """The node pools: nodes rented while work waits for them, and their cost. For admins."""
        return self._call(calls.node_pools()).items

    def reservations(self) -> Sequence[ReservationOut]:
        """The reservations of the user's tenants, with their times; for admins all."""
        return self._call(calls.reservations()).items

    def reserve(self, ask: ReservationIn) -> ReservedOut:
        """Reserve resources for a tenant in a window of time. For admins."""
        return self._call(calls.reserve(ask))

    def unreserve(self, reservation_id: str) -> ReservationOut:
        """Cancel a reservation. For admins."""
        return self._call(calls.unreserve(reservation_id))

    def registry(self) -> RegistryOut:
        """The address of the site's image registry, and its certificate authority. Raises ApiError if the site has no
        registry.
        """
        return self._call(calls.registry())

    def collect_registry(self) -> CollectedOut:
        """Delete old images that are not in the catalogue from the registry. For admins."""
        return self._call(calls.collect_registry())

    def info(self) -> InfoOut:
        """This installation, and the user's identity in it."""
        return self._call(calls.info())

    def health(self) -> HealthOut:
        """Health of the control plane. Needs no token."""
        return self._call(calls.health())

    def launch_options(self, user: str | None = None, groups: Sequence[str] = ()) -> LaunchOptions:
        """The launch options of the user, and what is free now. Admins and the hub may ask for `user`, a member of
        `groups`.
        """
        return self._call(calls.launch_options(user, groups))

    def bundle(self, files: bundles.Files) -> BundleOut:
        """Upload a folder, a file, or files by their names in the bundle; submit with its `digest`."""
        content = bundles.content(files)
        return self._retry(
            Call("POST", "/bundles", BundleOut),
            {"method": "POST", "url": "/bundles", "content": content, "headers": bundles.HEADERS},
        )

    def token(
        self, *, note: str = "made by the SDK", expires_s: int | None = None, scopes: list[str] | None = None
    ) -> TokenOut:
        """Create a new token for the user."""
        return self._call(calls.token(TokenIn(note=note, expires_s=expires_s, scopes=scopes)))

    # --- requests -----------------------------------------------------------------------------------------------

    def _call(self, call: Call[Answer]) -> Answer:
        return self._retry(call, transport.request(call))

    def _retry(self, call: Call[Answer], request: dict[str, Any]) -> Answer:
        backoff = Backoff(self._reconnect_timeout_s)
        while True:
            reached = True
            try:
                response = self._http.request(**request)
                return call.parse(response.status_code, response.content, response.headers.get("Retry-After"))
            except httpx2.TransportError as error:
                problem, reached = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
            if not may_repeat(call.repeatable, problem, reached):
                raise problem
            time.sleep(backoff.pause_after(problem))

    def _stream(self, path: str, query: dict[str, Any], last_id: str | None) -> Generator[httpx2.ServerSentEvent]:
        """The events of a stream until the server sends `end`; a broken stream resumes after the last event."""
        backoff = Backoff(self._reconnect_timeout_s)
        while True:
            try:
                with self._http.stream(**transport.stream_request(path, query, last_id)) as response:
                    if not response.is_success:
                        raise ApiError.of(response.status_code, response.read(), response.headers.get("Retry-After"))
                    for event in transport.events_of(response):
                        if event.event == "error":
                            raise transport.error_in(event)
                        backoff.reset()
                        last_id = event.id or last_id
                        if event.data:
                            yield event
                        if event.event == "end":
                            return
                problem = transport.broke_off()
            except httpx2.TransportError as error:
                problem, _ = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
            if not may_repeat(True, problem, True):
                raise problem
            time.sleep(backoff.pause_after(problem))
