"""The client for scripts and the command line.

The same calls as `asynchronous.AsyncClient`; what they send stands in `calls`, so that the two cannot differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from os import PathLike
from types import TracebackType
from typing import Any, Self, Unpack

import httpx2

from commonage.sdk import bundles, calls, transport
from commonage.sdk.calls import Answer, Call, Executed, Patience, Which, given, may_repeat
from commonage.sdk.errors import ApiError
from commonage.wire.fleets import FleetOut
from commonage.wire.images import ImageIn, ImageNameOut, ImageOut, RemovedOut
from commonage.wire.joining import JoinKitOut, JoinTokenOut
from commonage.wire.platform import (
    EnvironmentOut,
    HealthOut,
    InfoOut,
    LaunchOptions,
    NodeOut,
    TokenIn,
    TokenOut,
    UsageOut,
)
from commonage.wire.registry import CollectedOut, RegistryOut
from commonage.wire.tenants import ReservationIn, ReservationOut, ReservedOut, TenantOut
from commonage.wire.volumes import VolumeList
from commonage.wire.workloads import (
    TERMINAL_STATES,
    AttemptOut,
    BundleOut,
    EventOut,
    EventPage,
    ExplanationOut,
    LogLineOut,
    MetricsOut,
    SubmitIn,
    SubmitOut,
    WorkloadOut,
    WorkloadPage,
)


class Client:
    """`url` is where the installation answers (`http://127.0.0.1:8000`), `token` a hub token.

    Every call raises ApiError: a refusal with its `code`, or Unreachable after `patience_s` seconds of trying again
    (only what may safely be sent twice is). Use it in a `with`, or call `close` at the end.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float = 10.0,
        timeout_s: float = 60.0,
        http: httpx2.BaseTransport | None = None,
    ) -> None:
        self._patience_s = patience_s
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

    # --- work ---------------------------------------------------------------------------------------------------

    def submit(self, ask: SubmitIn) -> SubmitOut:
        """Submit a workload or an array. It is durable when this returns; with `ask.key`, asking again is harmless."""
        return self._call(calls.submit(ask))

    def dry_run(self, ask: SubmitIn) -> ExplanationOut:
        """What would become of it: whether it could start now, else what it would wait for."""
        return self._call(calls.dry_run(ask))

    def workload(self, workload_id: str) -> WorkloadOut:
        """One workload, as it stands now."""
        return self._call(calls.workload(workload_id))

    def workloads(self, **which: Unpack[Which]) -> Generator[WorkloadOut, None, None]:
        """All that match, newest first, page after page."""
        cursor: str | None = None
        while True:
            page = self.workload_page(limit=200, cursor=cursor, **which)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def workload_page(
        self, *, limit: int = 100, cursor: str | None = None, counts: bool = False, **which: Unpack[Which]
    ) -> WorkloadPage:
        """One page of those that match; `counts` adds how many there are in each state."""
        return self._call(calls.workload_page(which, limit, cursor, counts))

    def stop(self, workload_id: str, reason: str = "") -> WorkloadOut:
        """Have it end. ApiError `already-ended` if it has."""
        return self._call(calls.stop(workload_id, reason))

    def execute(self, workload_id: str, command: Sequence[str], *, stdin: bytes = b"") -> Executed:
        """Run a command beside a running workload to its end. One that is talked to: `AsyncClient.exec`."""
        from commonage.sdk import execs  # noqa: PLC0415 (its HTTP client takes long to import)

        path = calls.workload_path(workload_id, "exec")

        async def why() -> ApiError:
            try:
                return transport.why_not(await asyncio.to_thread(self._http.get, path))
            except httpx2.TransportError as error:
                return transport.failure(error, self._http.base_url)[0]

        return execs.execute_blocking(transport.place_of(self._http, path, why), command, stdin)

    def explain(self, workload_id: str) -> ExplanationOut:
        """Why it waits, and until when."""
        return self._call(calls.explain(workload_id))

    def attempts(self, workload_id: str) -> Sequence[AttemptOut]:
        """All its tries, oldest first."""
        return self._call(calls.attempts(workload_id)).items

    def workload_usage(self, workload_id: str) -> UsageOut:
        """What it has used so far."""
        return self._call(calls.workload_usage(workload_id))

    def workload_metrics(
        self, workload_id: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """What it measured: cores, memory, VRAM. The last hour if not said otherwise."""
        return self._call(calls.workload_metrics(workload_id, since, until, points))

    def wait(self, workload_id: str, timeout_s: float | None = None) -> WorkloadOut:
        """Return it once it has ended. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = 0.05
        while (workload := self.workload(workload_id)).state not in TERMINAL_STATES:
            if deadline is not None and time.monotonic() + pause > deadline:
                raise TimeoutError(f"workload {workload_id} is still {workload.state} after {timeout_s:g} s")
            time.sleep(pause)
            pause = min(0.5, pause * 1.5)
        return workload

    # --- what it says -------------------------------------------------------------------------------------------

    def logs(
        self,
        workload_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        offset: int | None = None,
        tail: int | None = None,
    ) -> Generator[LogLineOut, None, None]:
        """Its output, line by line; with `follow` until it ends. Goes on where it was when the connection breaks."""
        query = given(attempt=attempt, tail=tail, follow="true" if follow else "false")
        last_id = None if offset is None else str(offset)
        with closing(self._stream(calls.workload_path(workload_id, "logs"), query, last_id)) as stream:
            for event in stream:
                line = transport.log_line(event)
                if line is not None:
                    yield line

    def events(self, workload_id: str | None = None, *, after: int | None = None) -> Generator[EventOut, None, None]:
        """What happens, as it happens, without end: to one workload or to all of yours.

        From now on, or first all behind the event number `after`. A broken connection is taken up again where it was.
        """
        last_id = None if after is None else str(after)
        with closing(self._stream(calls.events_path(workload_id), {}, last_id)) as stream:
            for event in stream:
                happening = transport.happening(event)
                if happening is not None:
                    yield happening

    def event_page(self, workload_id: str | None = None, *, after: int = 0, limit: int = 500) -> EventPage:
        """What has happened behind the event number `after`, oldest first."""
        return self._call(calls.event_page(workload_id, after, limit))

    # --- the installation ---------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeOut]:
        """The machines, their cards, and what is free."""
        return self._call(calls.nodes()).items

    def node_metrics(
        self, site: str, name: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """What a machine and its cards measured. The last hour if not said otherwise."""
        return self._call(calls.node_metrics(site, name, since, until, points))

    def drain(
        self, site: str, name: str, *, requeue: bool = False, by: str | None = None, time_zone: str | None = None
    ) -> NodeOut:
        """Let the machine take no more work. For admins.

        With `requeue` jobs queue again now; `by` (`2h`, `18:00` in `time_zone`) is when all that still runs must leave.
        """
        return self._call(calls.drain(site, name, requeue, by, time_zone))

    def remove_node(self, site: str, name: str, *, force: bool = False) -> Sequence[str]:
        """Know a machine no more, and let it in no more: one that is not ready, and on which nothing runs. For admins.

        With `force` what is still counted as running on a lost one counts as lost. Says what was done.
        """
        return self._call(calls.remove_node(site, name, force)).done

    def resume(self, site: str, name: str, *, gpu: str | None = None) -> NodeOut:
        """Let the machine take work again; with `gpu` (index or uuid) forget the faults of that one. For admins."""
        return self._call(calls.resume(site, name, gpu))

    def join_token(self, *, for_s: int = 3600, cloud_init: bool = False, options: Sequence[str] = ()) -> JoinTokenOut:
        """A token with which machines join for so many seconds; on wish with user data for a cloud's. For admins."""
        return self._call(calls.join_token(for_s, cloud_init, options))

    def revoke_join_tokens(self) -> Sequence[str]:
        """Have no token that was made until now be good any more. For admins."""
        return self._call(calls.revoke_join_tokens()).done

    def join_kit(self) -> JoinKitOut:
        """The script and the packed program with which a machine joins. For admins."""
        return self._call(calls.join_kit())

    def environments(self) -> Sequence[EnvironmentOut]:
        """The catalogue."""
        return self._call(calls.environments()).items

    def volumes(self) -> VolumeList:
        """The volumes that one may have, and the room that one's home takes."""
        return self._call(calls.volumes())

    def images(self) -> Sequence[ImageOut]:
        """The images of the catalogue that one may see."""
        return self._call(calls.images()).items

    def image(self, name: str) -> ImageOut:
        """One of them: what it was made from, where it lies, how much work is in it."""
        return self._call(calls.image(name))

    def check_image_name(self, name: str) -> ImageNameOut:
        """What is known of a name under which one may push. Raises ApiError for any other, with the reason."""
        return self._call(calls.check_image_name(name))

    def register_image(self, ask: ImageIn) -> ImageOut:
        """Have the catalogue know an image that was pushed."""
        return self._call(calls.register_image(ask))

    def remove_image(self, name: str) -> RemovedOut:
        """Take an image out of the catalogue. What runs in it goes on."""
        return self._call(calls.remove_image(name))

    def prepull(self, name: str, nodes: Sequence[str] = ()) -> ImageOut:
        """Have an image brought to these machines, or to all that take work."""
        return self._call(calls.prepull(name, nodes))

    def usage(self, *, since: float | None = None, until: float | None = None, by: str = "owner") -> UsageOut:
        """What was held within [since, until), the last 30 days if not said otherwise."""
        return self._call(calls.usage(since, until, by))

    def tenants(self) -> Sequence[TenantOut]:
        """Who shares the machines: quotas, and what each holds. One's own, for admins all."""
        return self._call(calls.tenants()).items

    def fleets(self) -> Sequence[FleetOut]:
        """Machines that are rented while work waits for them, and what they cost. For admins."""
        return self._call(calls.fleets()).items

    def reservations(self) -> Sequence[ReservationOut]:
        """What is kept for one's tenants, and when; for admins all."""
        return self._call(calls.reservations()).items

    def reserve(self, ask: ReservationIn) -> ReservedOut:
        """Keep room for a tenant in a window of time. For admins."""
        return self._call(calls.reserve(ask))

    def unreserve(self, reservation_id: str) -> ReservationOut:
        """Take a reservation away. For admins."""
        return self._call(calls.unreserve(reservation_id))

    def registry(self) -> RegistryOut:
        """Where the site's registry of images is, and the authority behind it. Raises ApiError where there is none."""
        return self._call(calls.registry())

    def collect_registry(self) -> CollectedOut:
        """Throw out of the registry what is old and not in the catalogue. For admins."""
        return self._call(calls.collect_registry())

    def info(self) -> InfoOut:
        """This installation, and who you are to it."""
        return self._call(calls.info())

    def health(self) -> HealthOut:
        """Whether the control plane does its work. Needs no token."""
        return self._call(calls.health())

    def launch_options(self, user: str | None = None, groups: Sequence[str] = ()) -> LaunchOptions:
        """What you (admins and the hub: what `user`, who is in `groups`) may have, and what is free now."""
        return self._call(calls.launch_options(user, groups))

    def bundle(self, files: str | PathLike[str] | Mapping[str, str | PathLike[str]]) -> BundleOut:
        """Send a folder, a file, or files by their names in the bundle; submit with its `digest`."""
        with bundles.pack(files) as archive:
            content = archive.read()
        return self._retry(
            Call("POST", "/bundles", BundleOut),
            {"method": "POST", "url": "/bundles", "content": content, "headers": bundles.HEADERS},
        )

    def token(
        self, *, note: str = "made by the SDK", expires_s: int | None = None, scopes: list[str] | None = None
    ) -> TokenOut:
        """A new token for yourself."""
        return self._call(calls.token(TokenIn(note=note, expires_s=expires_s, scopes=scopes)))

    # --- how ----------------------------------------------------------------------------------------------------

    def _call(self, call: Call[Answer]) -> Answer:
        return self._retry(call, transport.request(call))

    def _retry(self, call: Call[Answer], request: dict[str, Any]) -> Answer:
        patience = Patience(self._patience_s)
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
            time.sleep(patience.pause_after(problem))

    def _stream(
        self, path: str, query: dict[str, Any], last_id: str | None
    ) -> Generator[httpx2.ServerSentEvent, None, None]:
        """A stream's events until the server says `end`; taken up again behind the last one wherever it breaks."""
        patience = Patience(self._patience_s)
        while True:
            try:
                with self._http.stream(**transport.stream_request(path, query, last_id)) as response:
                    if not response.is_success:
                        raise ApiError.of(response.status_code, response.read(), response.headers.get("Retry-After"))
                    for event in transport.events_of(response):
                        if event.event == "error":
                            raise transport.told(event)
                        patience.reset()
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
            time.sleep(patience.pause_after(problem))
