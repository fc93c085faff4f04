"""The client for programs on asyncio; the hub's spawner is one.

The same calls as `synchronous.Client`; what they send stands in `calls`, so that the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import httpx2

from commonage.sdk import bundles, calls, transport
from commonage.sdk.calls import Answer, Call, Executed, Patience, Which, given, may_repeat
from commonage.sdk.errors import ApiError
from commonage.wire.execs import TerminalIn
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

if TYPE_CHECKING:
    from commonage.sdk.execs import Exec


class AsyncClient:
    """`url` is where the installation answers (`http://127.0.0.1:8000`), `token` a hub token.

    Every call raises ApiError: a refusal with its `code`, or Unreachable after `patience_s` seconds of trying again
    (only what may safely be sent twice is). Use as `async with`, or call `aclose` at the end.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float = 10.0,
        timeout_s: float = 60.0,
        http: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._patience_s = patience_s
        self._http = httpx2.AsyncClient(transport=http, **transport.options(url, token, timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # --- work ---------------------------------------------------------------------------------------------------

    async def submit(self, ask: SubmitIn) -> SubmitOut:
        """Submit a workload or an array. It is durable when this returns; with `ask.key`, asking again is harmless."""
        return await self._call(calls.submit(ask))

    async def dry_run(self, ask: SubmitIn) -> ExplanationOut:
        """What would become of it: whether it could start now, else what it would wait for."""
        return await self._call(calls.dry_run(ask))

    async def workload(self, workload_id: str) -> WorkloadOut:
        """One workload, as it stands now."""
        return await self._call(calls.workload(workload_id))

    async def workloads(self, **which: Unpack[Which]) -> AsyncGenerator[WorkloadOut]:
        """All that match, newest first, page after page."""
        cursor: str | None = None
        while True:
            page = await self.workload_page(limit=200, cursor=cursor, **which)
            for workload in page.items:
                yield workload
            cursor = page.next_cursor
            if cursor is None:
                return

    async def workload_page(
        self, *, limit: int = 100, cursor: str | None = None, counts: bool = False, **which: Unpack[Which]
    ) -> WorkloadPage:
        """One page of those that match; `counts` adds how many there are in each state."""
        return await self._call(calls.workload_page(which, limit, cursor, counts))

    async def stop(self, workload_id: str, reason: str = "") -> WorkloadOut:
        """Have it end. ApiError `already-ended` if it has."""
        return await self._call(calls.stop(workload_id, reason))

    def exec(
        self, workload_id: str, command: Sequence[str] = (), *, terminal: TerminalIn | None = None
    ) -> AbstractAsyncContextManager[Exec]:
        """`async with`: a command beside a running workload; a shell if it is empty. Leaving ends it."""
        from commonage.sdk import execs  # noqa: PLC0415 (its HTTP client takes long to import)

        return execs.connected(self._place(workload_id), command, terminal)

    async def execute(self, workload_id: str, command: Sequence[str], *, stdin: bytes = b"") -> Executed:
        """Run a command beside a running workload to its end."""
        from commonage.sdk import execs  # noqa: PLC0415 (its HTTP client takes long to import)

        return await execs.execute(self._place(workload_id), command, stdin)

    def _place(self, workload_id: str) -> transport.Place:
        path = calls.workload_path(workload_id, "exec")

        async def why() -> ApiError:
            try:
                return transport.why_not(await self._http.get(path))
            except httpx2.TransportError as error:
                return transport.failure(error, self._http.base_url)[0]

        return transport.place_of(self._http, path, why)

    async def explain(self, workload_id: str) -> ExplanationOut:
        """Why it waits, and until when."""
        return await self._call(calls.explain(workload_id))

    async def attempts(self, workload_id: str) -> Sequence[AttemptOut]:
        """All its tries, oldest first."""
        return (await self._call(calls.attempts(workload_id))).items

    async def workload_usage(self, workload_id: str) -> UsageOut:
        """What it has used so far."""
        return await self._call(calls.workload_usage(workload_id))

    async def workload_metrics(
        self, workload_id: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """What it measured: cores, memory, VRAM. The last hour if not said otherwise."""
        return await self._call(calls.workload_metrics(workload_id, since, until, points))

    async def wait(self, workload_id: str, timeout_s: float | None = None) -> WorkloadOut:
        """Return it once it has ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            workload = await self.workload(workload_id)
            if workload.state in TERMINAL_STATES:
                return workload
            async with aclosing(self.events(workload_id, after=0)) as events:
                async for event in events:
                    if event.state in TERMINAL_STATES:
                        workload = await self.workload(workload_id)
                    if workload.state in TERMINAL_STATES:
                        break
            return workload

    # --- what it says -------------------------------------------------------------------------------------------

    async def logs(
        self,
        workload_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        offset: int | None = None,
        tail: int | None = None,
    ) -> AsyncGenerator[LogLineOut]:
        """Its output, line by line; with `follow` until it ends. Goes on where it was when the connection breaks."""
        query = given(attempt=attempt, tail=tail, follow="true" if follow else "false")
        last_id = None if offset is None else str(offset)
        async with aclosing(self._stream(calls.workload_path(workload_id, "logs"), query, last_id)) as stream:
            async for event in stream:
                line = transport.log_line(event)
                if line is not None:
                    yield line

    async def events(self, workload_id: str | None = None, *, after: int | None = None) -> AsyncGenerator[EventOut]:
        """What happens, as it happens, without end: to one workload or to all of yours.

        From now on, or first all behind the event number `after`. A broken connection is taken up again where it was.
        """
        last_id = None if after is None else str(after)
        async with aclosing(self._stream(calls.events_path(workload_id), {}, last_id)) as stream:
            async for event in stream:
                happening = transport.happening(event)
                if happening is not None:
                    yield happening

    async def event_page(self, workload_id: str | None = None, *, after: int = 0, limit: int = 500) -> EventPage:
        """What has happened behind the event number `after`, oldest first."""
        return await self._call(calls.event_page(workload_id, after, limit))

    # --- the installation ---------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[NodeOut]:
        """The machines, their cards, and what is free."""
        return (await self._call(calls.nodes())).items

    async def node_metrics(
        self, site: str, name: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """What a machine and its cards measured. The last hour if not said otherwise."""
        return await self._call(calls.node_metrics(site, name, since, until, points))

    async def drain(
        self, site: str, name: str, *, requeue: bool = False, by: str | None = None, time_zone: str | None = None
    ) -> NodeOut:
        """Let the machine take no more work. For admins.

        With `requeue` jobs queue again now; `by` (`2h`, `18:00` in `time_zone`) is when all that still runs must leave.
        """
        return await self._call(calls.drain(site, name, requeue, by, time_zone))

    async def remove_node(self, site: str, name: str, *, force: bool = False) -> Sequence[str]:
        """Know a machine no more, and let it in no more: one that is not ready, and on which nothing runs. For admins.

        With `force` what is still counted as running on a lost one counts as lost. Says what was done.
        """
        return (await self._call(calls.remove_node(site, name, force))).done

    async def resume(self, site: str, name: str, *, gpu: str | None = None) -> NodeOut:
        """Let the machine take work again; with `gpu` (index or uuid) forget the faults of that one. For admins."""
        return await self._call(calls.resume(site, name, gpu))

    async def join_token(
        self, *, for_s: int = 3600, cloud_init: bool = False, options: Sequence[str] = ()
    ) -> JoinTokenOut:
        """A token with which machines join for so many seconds; on wish with user data for a cloud's. For admins."""
        return await self._call(calls.join_token(for_s, cloud_init, options))

    async def revoke_join_tokens(self) -> Sequence[str]:
        """Have no token that was made until now be good any more. For admins."""
        return (await self._call(calls.revoke_join_tokens())).done

    async def join_kit(self) -> JoinKitOut:
        """The script and the packed program with which a machine joins. For admins."""
        return await self._call(calls.join_kit())

    async def environments(self) -> Sequence[EnvironmentOut]:
        """The catalogue."""
        return (await self._call(calls.environments())).items

    async def volumes(self) -> VolumeList:
        """The volumes that one may have, and the room that one's home takes."""
        return await self._call(calls.volumes())

    async def images(self) -> Sequence[ImageOut]:
        """The images of the catalogue that one may see."""
        return (await self._call(calls.images())).items

    async def image(self, name: str) -> ImageOut:
        """One of them: what it was made from, where it lies, how much work is in it."""
        return await self._call(calls.image(name))

    async def check_image_name(self, name: str) -> ImageNameOut:
        """What is known of a name under which one may push. Raises ApiError for any other, with the reason."""
        return await self._call(calls.check_image_name(name))

    async def register_image(self, ask: ImageIn) -> ImageOut:
        """Have the catalogue know an image that was pushed."""
        return await self._call(calls.register_image(ask))

    async def remove_image(self, name: str) -> RemovedOut:
        """Take an image out of the catalogue. What runs in it goes on."""
        return await self._call(calls.remove_image(name))

    async def prepull(self, name: str, nodes: Sequence[str] = ()) -> ImageOut:
        """Have an image brought to these machines, or to all that take work."""
        return await self._call(calls.prepull(name, nodes))

    async def usage(self, *, since: float | None = None, until: float | None = None, by: str = "owner") -> UsageOut:
        """What was held within [since, until), the last 30 days if not said otherwise."""
        return await self._call(calls.usage(since, until, by))

    async def tenants(self) -> Sequence[TenantOut]:
        """Who shares the machines: quotas, and what each holds. One's own, for admins all."""
        return (await self._call(calls.tenants())).items

    async def fleets(self) -> Sequence[FleetOut]:
        """Machines that are rented while work waits for them, and what they cost. For admins."""
        return (await self._call(calls.fleets())).items

    async def reservations(self) -> Sequence[ReservationOut]:
        """What is kept for one's tenants, and when; for admins all."""
        return (await self._call(calls.reservations())).items

    async def reserve(self, ask: ReservationIn) -> ReservedOut:
        """Keep room for a tenant in a window of time. For admins."""
        return await self._call(calls.reserve(ask))

    async def unreserve(self, reservation_id: str) -> ReservationOut:
        """Take a reservation away. For admins."""
        return await self._call(calls.unreserve(reservation_id))

    async def registry(self) -> RegistryOut:
        """Where the site's registry of images is, and the authority behind it. Raises ApiError where there is none."""
        return await self._call(calls.registry())

    async def collect_registry(self) -> CollectedOut:
        """Throw out of the registry what is old and not in the catalogue. For admins."""
        return await self._call(calls.collect_registry())

    async def info(self) -> InfoOut:
        """This installation, and who you are to it."""
        return await self._call(calls.info())

    async def health(self) -> HealthOut:
        """Whether the control plane does its work. Needs no token."""
        return await self._call(calls.health())

    async def launch_options(self, user: str | None = None, groups: Sequence[str] = ()) -> LaunchOptions:
        """What you (admins and the hub: what `user`, who is in `groups`) may have, and what is free now."""
        return await self._call(calls.launch_options(user, groups))

    async def bundle(self, files: str | PathLike[str] | Mapping[str, str | PathLike[str]]) -> BundleOut:
        """Send a folder, a file, or files by their names in the bundle; submit with its `digest`."""
        with await asyncio.to_thread(bundles.pack, files) as archive:
            content = await asyncio.to_thread(archive.read)
        return await self._retry(
            Call("POST", "/bundles", BundleOut),
            {"method": "POST", "url": "/bundles", "content": content, "headers": bundles.HEADERS},
        )

    async def token(
        self, *, note: str = "made by the SDK", expires_s: int | None = None, scopes: list[str] | None = None
    ) -> TokenOut:
        """A new token for yourself."""
        return await self._call(calls.token(TokenIn(note=note, expires_s=expires_s, scopes=scopes)))

    # --- how ----------------------------------------------------------------------------------------------------

    async def _call(self, call: Call[Answer]) -> Answer:
        return await self._retry(call, transport.request(call))

    async def _retry(self, call: Call[Answer], request: dict[str, Any]) -> Answer:
        patience = Patience(self._patience_s)
        while True:
            reached = True
            try:
                response = await self._http.request(**request)
                return call.parse(response.status_code, response.content, response.headers.get("Retry-After"))
            except httpx2.TransportError as error:
                problem, reached = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
            if not may_repeat(call.repeatable, problem, reached):
                raise problem
            await asyncio.sleep(patience.pause_after(problem))

    async def _stream(
        self, path: str, query: dict[str, Any], last_id: str | None
    ) -> AsyncGenerator[httpx2.ServerSentEvent]:
        """A stream's events until the server says `end`; taken up again behind the last one wherever it breaks."""
        patience = Patience(self._patience_s)
        while True:
            try:
                async with self._http.stream(**transport.stream_request(path, query, last_id)) as response:
                    if not response.is_success:
                        raise ApiError.of(
                            response.status_code, await response.aread(), response.headers.get("Retry-After")
                        )
                    async for event in transport.events_of(response):
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
            await asyncio.sleep(patience.pause_after(problem))
