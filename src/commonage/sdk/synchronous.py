"""The client for scripts and the command line. Generated from `asynchronous.py` by `scripts/sdk.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import httpx2

from commonage.sdk import bundles, transport
from commonage.sdk import files as transfers
from commonage.sdk.calls import (
    Answer,
    Backoff,
    Call,
    Executed,
    WorkloadFilter,
    class_path,
    events_path,
    given,
    image_path,
    material_path,
    may_repeat,
    node_path,
    resource_path,
    site_path,
    workload_path,
)
from commonage.sdk.errors import ApiError, Unreachable
from commonage.wire.activity import ExtendIn
from commonage.wire.classes import (
    AskIn,
    ClassIn,
    ClassList,
    ClassMessageIn,
    ClassOut,
    ConsentIn,
    ConsentOut,
)
from commonage.wire.cron_jobs import CronJobIn, CronJobList, CronJobOut, TriggeredOut, TriggerIn
from commonage.wire.environments import (
    EnvironmentBuildIn,
    EnvironmentDetailsOut,
    EnvironmentList,
    EnvironmentOut,
    LaunchOptions,
    VolumeList,
)
from commonage.wire.events import EventOut, EventPage, LogLineOut, MetricsOut
from commonage.wire.files import (
    FileChangedOut,
    FileList,
    FilePlaceList,
    FilePlaceOut,
    FolderIn,
    MoveIn,
    UploadOut,
)
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
from commonage.wire.materials import MaterialAccessOut, MaterialList, MaterialOut, MaterialTokenIn, ResetIn
from commonage.wire.nodes import (
    DoneOut,
    JoinKitOut,
    JoinTokenIn,
    JoinTokenOut,
    NodeList,
    NodeOut,
    NodePoolList,
    NodePoolOut,
)
from commonage.wire.offboarding import (
    OffboardingIn,
    OffboardingList,
    OffboardingOut,
    OffboardingPlanIn,
    OffboardingPlanOut,
    UserList,
    UserOut,
)
from commonage.wire.resources import (
    ApplyIn,
    ExportOut,
    GitSourceIn,
    GitSourceList,
    GitSourceOut,
    PlanIn,
    PlanOut,
    ResourceIn,
    ResourceList,
    ResourceOut,
)
from commonage.wire.sites import SiteList, SiteOut, SiteTokenIn, SiteTokenOut
from commonage.wire.tenants import (
    QuotaList,
    QuotaOut,
    ReservationIn,
    ReservationList,
    ReservationOut,
    ReservedOut,
    TenantList,
    TenantOut,
)
from commonage.wire.usage import UsageOut
from commonage.wire.visits import OpenedOut, VisitorIn, VisitorsIn, VisitorsOut
from commonage.wire.workloads import (
    AttemptList,
    AttemptOut,
    BundleOut,
    ExplanationOut,
    StopIn,
    SubmitIn,
    SubmitOut,
    WorkloadOut,
    WorkloadPage,
)


class Client:
    """`url` is the address of the installation (`http://127.0.0.1:8000`), `token` a hub token.

    Every call raises ApiError: a refusal with its `code`, or Unreachable after `reconnect_timeout_s` seconds of
    retries. Only calls that may safely be sent twice are retried. Use it as a context manager, or close it at the end.
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
        self._http.close()

    # --- workloads ----------------------------------------------------------------------------------------------

    def submit(self, ask: SubmitIn) -> SubmitOut:
        """Submit a workload or an array. It is durable on return; with `ask.key`, a repeated call is harmless."""
        return self._call(Call("POST", "/workloads", SubmitOut, body=ask, repeatable=ask.key is not None))

    def dry_run(self, ask: SubmitIn) -> ExplanationOut:
        """Explain the submission without making it: whether it could start now, otherwise what it would wait for."""
        return self._call(Call("POST", "/workloads/dry-run", ExplanationOut, body=ask))

    def workload(self, workload_id: str) -> WorkloadOut:
        return self._get(workload_path(workload_id), WorkloadOut)

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
        query = {**which, "limit": limit, "cursor": cursor, "counts": "true" if counts else None}
        return self._get("/workloads", WorkloadPage, **query)

    def stop(self, workload_id: str, reason: str = "") -> WorkloadOut:
        """Stop a workload. Raises ApiError `already-ended` if it has ended."""
        return self._call(
            Call("POST", workload_path(workload_id, "stop"), WorkloadOut, body=StopIn(reason=reason), repeatable=False)
        )

    def extend(self, workload_id: str, for_s: float = 7200) -> WorkloadOut:
        """Keep a running workload for at least `for_s` from now. Raises ApiError `extension-refused`, `not-running`."""
        call = Call("POST", workload_path(workload_id, "extend"), WorkloadOut, body=ExtendIn(for_s=for_s))
        return self._call(call)

    def release_gpu(self, workload_id: str) -> WorkloadOut:
        """Start a session again without its GPU; the workload that ends. Raises ApiError `no-gpu`, `not-running`."""
        call = Call("POST", workload_path(workload_id, "release-gpu"), WorkloadOut, repeatable=False)
        return self._call(call)

    def open_session(self, workload_id: str) -> OpenedOut:
        """Get access to a running session of another user, who is notified. Returns its address."""
        return self._call(Call("POST", workload_path(workload_id, "open"), OpenedOut, repeatable=False))

    def check_visitors(self, workload_id: str, visitors: Sequence[VisitorIn]) -> VisitorsOut:
        """The visitors, of those given, who may stay in a session. For JupyterHub and admins."""
        body = VisitorsIn(visitors=list(visitors))
        return self._call(Call("POST", workload_path(workload_id, "visitors"), VisitorsOut, body=body))

    def execute(self, workload_id: str, command: Sequence[str], *, stdin: bytes = b"") -> Executed:
        """Run a command in a running workload and wait until it ends. For an interactive one: `AsyncClient.exec`."""
        from commonage.sdk import execs  # noqa: PLC0415 (its HTTP client takes long to import)

        return execs.execute(transport.place_of(self._http, workload_id), command, stdin)

    def explain(self, workload_id: str) -> ExplanationOut:
        """Explain why the workload waits, and when it is expected to start."""
        return self._get(workload_path(workload_id, "explanation"), ExplanationOut)

    def attempts(self, workload_id: str) -> Sequence[AttemptOut]:
        """All attempts of the workload, oldest first."""
        return self._get(workload_path(workload_id, "attempts"), AttemptList).items

    def workload_usage(self, workload_id: str) -> UsageOut:
        """The resources that the workload has used so far."""
        return self._get(workload_path(workload_id, "usage"), UsageOut)

    def workload_metrics(
        self, workload_id: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """Measured CPU, memory and VRAM of a workload. Default: the last hour."""
        return self._get(workload_path(workload_id, "metrics"), MetricsOut, since=since, until=until, points=points)

    def wait(self, workload_id: str, timeout_s: float | None = None) -> WorkloadOut:
        """Wait until the workload has ended and return it. Raises TimeoutError."""
        return transport.wait(self, workload_id, timeout_s)

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
        """The workload's output, line by line; with `follow` until it ends. A broken connection is resumed."""
        query = given(attempt=attempt, tail=tail, follow="true" if follow else "false")
        last_id = None if offset is None else str(offset)
        with closing(self._stream(workload_path(workload_id, "logs"), query, last_id)) as stream:
            for event in stream:
                if event.event == "line":
                    yield LogLineOut.model_validate_json(event.data)

    def events(self, workload_id: str | None = None, *, after: int | None = None) -> Generator[EventOut]:
        """A live stream of events, without end: of one workload, or of all workloads of the user.

        It starts now, or with the first event after the number `after`. A broken connection is resumed.
        """
        last_id = None if after is None else str(after)
        with closing(self._stream(events_path(workload_id), {}, last_id)) as stream:
            for event in stream:
                if event.event != "end":
                    yield EventOut.model_validate_json(event.data)

    def event_page(self, workload_id: str | None = None, *, after: int = 0, limit: int = 500) -> EventPage:
        """Past events after the event number `after`, oldest first."""
        return self._get(events_path(workload_id), EventPage, after=after, limit=limit)

    # --- the installation ---------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeOut]:
        return self._get("/nodes", NodeList).items

    def node_metrics(
        self, site: str, name: str, *, since: float | None = None, until: float | None = None, points: int = 200
    ) -> MetricsOut:
        """Measurements of a node and its GPUs. Default: the last hour."""
        return self._get(node_path(site, name, "metrics"), MetricsOut, since=since, until=until, points=points)

    def drain(
        self, site: str, name: str, *, requeue: bool = False, by: str | None = None, time_zone: str | None = None
    ) -> NodeOut:
        """Drain a node: no workload starts on it any more. For admins.

        With `requeue` its jobs are requeued now. `by` (`2h`, `18:00` in `time_zone`) is when all remaining
        workloads must leave.
        """
        query = given(requeue=requeue or None, by=by, time_zone=time_zone)
        return self._call(Call("POST", node_path(site, name, "drain"), NodeOut, query))

    def remove_node(self, site: str, name: str, *, force: bool = False) -> Sequence[str]:
        """Remove a node that is not ready and runs nothing, and refuse it when it connects again. For admins.

        With `force` the workloads that still count as running on a lost node become lost. Returns the steps taken.
        """
        return (
            self._call(Call("DELETE", node_path(site, name), DoneOut, given(force=force or None), repeatable=False))
        ).done

    def resume(self, site: str, name: str, *, gpu: str | None = None) -> NodeOut:
        """Let the node accept work again; with `gpu` (index or UUID) clear the faults of that GPU. For admins."""
        return self._call(Call("POST", node_path(site, name, "resume"), NodeOut, given(gpu=gpu)))

    def join_token(
        self, *, site: str = "local", for_s: int = 3600, cloud_init: bool = False, options: Sequence[str] = ()
    ) -> JoinTokenOut:
        """A token for joining nodes, valid for `for_s` seconds; optionally with user data for a cloud. For admins."""
        ask = JoinTokenIn(site=site, for_s=for_s, cloud_init=cloud_init, options=list(options))
        return self._call(Call("POST", "/join-tokens", JoinTokenOut, body=ask))

    def revoke_join_tokens(self, site: str = "local") -> Sequence[str]:
        """Revoke all join tokens of a site made until now. For admins."""
        return self._call(Call("DELETE", "/join-tokens", DoneOut, given(site=site))).done

    def join_kit(self, site: str = "local") -> JoinKitOut:
        """The script and the packed program with which a node joins a site. For admins."""
        return self._call(Call("GET", "/join-kit", JoinKitOut, given(site=site)))

    def sites(self) -> Sequence[SiteOut]:
        """The sites elsewhere, with the state of their links. For admins."""
        return self._get("/sites", SiteList).items

    def site_token(self, name: str, *, for_s: int = 3600) -> SiteTokenOut:
        """A token with which one machine may join as this site, once, within `for_s` seconds. For admins."""
        ask = SiteTokenIn(for_s=for_s)
        return self._call(Call("POST", site_path(name, "token"), SiteTokenOut, body=ask))

    def revoke_site(self, name: str) -> Sequence[str]:
        """Revoke the certificate and the token of a site, and end its link. For admins."""
        return self._call(Call("POST", site_path(name, "revoke"), DoneOut)).done

    def remove_site(self, name: str) -> Sequence[str]:
        """Revoke a site and forget it. For admins."""
        return self._call(Call("DELETE", site_path(name), DoneOut, repeatable=False)).done

    def environments(self) -> Sequence[EnvironmentOut]:
        return self._get("/environments", EnvironmentList).items

    def environment(self, name: str) -> EnvironmentDetailsOut:
        """One environment, with its kernels and their packages."""
        return self._get(f"/environments/{quote(name)}", EnvironmentDetailsOut)

    def build_environment(self, ask: EnvironmentBuildIn) -> WorkloadOut:
        """Queue the build of a tenant's environment; returns its job. For managers of the tenant."""
        return self._call(Call("POST", "/environments", WorkloadOut, body=ask, repeatable=False))

    def remove_environment(self, name: str) -> EnvironmentOut:
        """Remove an environment that was built here. For managers of its tenant."""
        return self._call(Call("DELETE", f"/environments/{quote(name)}", EnvironmentOut, repeatable=False))

    def reset_packages(self, workload_id: str) -> WorkloadOut:
        """Delete the packages that the user of a running session added."""
        return self._call(Call("POST", workload_path(workload_id, "reset-packages"), WorkloadOut))

    def volumes(self) -> VolumeList:
        """The volumes that the user may mount, and the disk space that the user's home takes."""
        return self._get("/volumes", VolumeList)

    # --- files ----------------------------------------------------------------------------------------------------

    def file_places(self) -> Sequence[FilePlaceOut]:
        """The user's home (`volume` is empty), and the volumes that the user may mount."""
        return self._get("/files/places", FilePlaceList).items

    def files(self, path: str = "", *, volume: str = "", tenant: str | None = None) -> FileList:
        """List a folder of the home, or of a volume."""
        return self._call(Call("GET", "/files", FileList, given(path=path, volume=volume, tenant=tenant)))

    def upload(
        self,
        file: str | os.PathLike[str],
        path: str,
        *,
        volume: str = "",
        tenant: str | None = None,
        replace: bool = False,
        on_progress: Callable[[int, int], object] = lambda _sent, _size: None,
    ) -> None:
        """Upload a file to `path` in the home or a volume, in pieces. Continues where an earlier run was interrupted.

        `on_progress` gets the bytes sent and the size.
        """
        source = transfers.Source(file, path)
        query = given(path=path, volume=volume, tenant=tenant, replace=replace or None, key=source.key)
        backoff, is_new = Backoff(self._reconnect_timeout_s), True
        offset = self._call(Call("GET", "/files/uploads", UploadOut, query)).offset
        while True:
            on_progress(offset, source.size_bytes)
            headers, content = source.headers(offset), source.piece(offset)
            try:
                response = self._http.patch("/files/content", params=query, headers=headers, content=content)
                call = Call("PATCH", "/files/content", UploadOut)
                found = call.parse(response.status_code, response.content, response.headers.get("Retry-After"))
                if found.complete:
                    on_progress(source.size_bytes, source.size_bytes)
                    return
                offset, is_new = found.offset, False
                backoff.reset()
                continue
            except httpx2.TransportError as error:
                problem, _ = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
                if error.code == "file-exists" and not is_new and offset + len(content) == source.size_bytes:
                    return  # the answer to the last piece was lost, and it had arrived
            if not may_repeat(True, problem, True) and problem.code not in ("upload-offset", "upload-busy"):
                raise problem
            time.sleep(backoff.pause_after(problem))
            is_new = False
            known = self._call(Call("GET", "/files/uploads", UploadOut, query)).offset
            offset = known if known or offset + len(content) < source.size_bytes else offset

    def download(
        self,
        path: str,
        file: str | os.PathLike[str],
        *,
        volume: str = "",
        tenant: str | None = None,
        on_progress: Callable[[int, int], object] = lambda _received, _size: None,
    ) -> None:
        """Download a file of the home or a volume. Continues where an earlier run was interrupted, if it has not
        changed.
        """
        target, backoff = transfers.Target(file), Backoff(self._reconnect_timeout_s)
        query = given(path=path, volume=volume, tenant=tenant)
        while True:
            try:
                with self._http.stream("GET", "/files/content", params=query, headers=target.headers()) as response:
                    if response.status_code == 416:
                        target.discard()
                        continue
                    if not response.is_success:
                        raise ApiError.of(response.status_code, response.read(), response.headers.get("Retry-After"))
                    target.begin(response.status_code, response.headers)
                    for chunk in response.iter_raw():
                        target.write(chunk)
                        backoff.reset()
                        on_progress(target.received, target.size_bytes)
                if target.is_complete:
                    target.finish()
                    return
                problem: ApiError = Unreachable("the download was interrupted")
            except httpx2.TransportError as error:
                problem, _ = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
            if not may_repeat(True, problem, True):
                raise problem
            time.sleep(backoff.pause_after(problem))

    def make_folder(self, path: str, *, volume: str = "", tenant: str | None = None) -> None:
        ask = FolderIn(path=path, volume=volume, tenant=tenant)
        self._call(Call("POST", "/files/folders", FileChangedOut, body=ask, repeatable=False))

    def move_file(self, path: str, to: str, *, volume: str = "", tenant: str | None = None) -> None:
        """Rename a file or folder within the home or volume. Nothing is replaced."""
        ask = MoveIn(path=path, volume=volume, tenant=tenant, to=to)
        self._call(Call("POST", "/files/move", FileChangedOut, body=ask, repeatable=False))

    def remove_file(self, path: str, *, volume: str = "", tenant: str | None = None) -> None:
        """Delete a file, or a folder with its content, for good."""
        query = given(path=path, volume=volume, tenant=tenant)
        self._call(Call("DELETE", "/files", FileChangedOut, query, repeatable=False))

    def materials(self) -> Sequence[MaterialOut]:
        """The materials that the user's sessions may have, with the user's copies."""
        return self._get("/materials", MaterialList).items

    def material(self, name: str) -> MaterialOut:
        """One material, the state of its sync, and the user's copy."""
        return self._get(material_path(name), MaterialOut)

    def sync_material(self, name: str) -> MaterialOut:
        """Sync with the repository now. For teachers and managers."""
        return self._call(Call("POST", material_path(name, "sync"), MaterialOut))

    def reset_material(self, name: str, files: Sequence[str] = ()) -> MaterialOut:
        """Make files of the user's copy as in the material, all by default. Edited ones get another name."""
        body = ResetIn(files=list(files))
        return self._call(Call("POST", material_path(name, "reset"), MaterialOut, body=body, repeatable=False))

    def material_access(self, name: str) -> MaterialAccessOut:
        """Deploy key and webhook of a material. For teachers and managers."""
        return self._get(material_path(name, "access"), MaterialAccessOut)

    def set_material_token(self, name: str, token: str, user: str = "") -> MaterialAccessOut:
        """Set the token with which the repository is read; an empty one is removed. For teachers and managers."""
        body = MaterialTokenIn(token=token, user=user)
        return self._call(Call("PUT", material_path(name, "token"), MaterialAccessOut, body=body))

    # --- images ---------------------------------------------------------------------------------------------------

    def images(self) -> Sequence[ImageOut]:
        """The images of the catalogue that the user may see."""
        return self._get("/images", ImageList).items

    def image(self, name: str) -> ImageOut:
        """One image: its sources, its location, and the number of workloads in it."""
        return self._get(image_path(name), ImageOut)

    def check_image_name(self, name: str) -> ImageNameOut:
        """Check a name to push an image under. Raises ApiError with the reason if the user may not push it."""
        return self._call(Call("POST", "/images/dry-run", ImageNameOut, body=ImageNameIn(name=name)))

    def register_image(self, ask: ImageIn) -> ImageOut:
        return self._call(Call("POST", "/images", ImageOut, body=ask))

    def remove_image(self, name: str) -> RemovedOut:
        """Remove an image from the catalogue. Workloads that run in it continue."""
        return self._call(Call("DELETE", image_path(name), RemovedOut, repeatable=False))

    def prepull(self, name: str, nodes: Sequence[str] = ()) -> ImageOut:
        """Pull an image in advance on these nodes, or on all nodes that accept work."""
        return self._call(Call("POST", f"{image_path(name)}/prepull", ImageOut, body=PrepullIn(nodes=list(nodes))))

    def usage(self, *, since: float | None = None, until: float | None = None, by: str = "owner") -> UsageOut:
        """Allocated resources within [since, until). Default: the last 30 days."""
        return self._get("/usage", UsageOut, since=since, until=until, by=by)

    def tenants(self) -> Sequence[TenantOut]:
        """The tenants with their quotas and allocated resources: the user's own, for admins all."""
        return self._get("/tenants", TenantList).items

    def resources(self, kind: str | None = None) -> Sequence[ResourceOut]:
        """The declared platform resources, or those of one kind. For admins."""
        path = "/resources" if kind is None else f"/resources/{quote(kind, safe='')}"
        return self._get(path, ResourceList).items

    def resource(self, kind: str, name: str) -> ResourceOut:
        """One platform resource, with its version. For admins."""
        return self._get(resource_path(kind, name), ResourceOut)

    def put_resource(self, kind: str, name: str, fields: Mapping[str, Any], version: int | None = None) -> ResourceOut:
        """Replace the fields of the resource of this version; without it, create a new one. For admins."""
        follows = "" if version is None else f'"{version}"'
        body = ResourceIn(document=dict(fields))
        path = resource_path(kind, name)
        return self._call(Call("PUT", path, ResourceOut, body=body, version=follows, repeatable=False))

    def delete_resource(self, kind: str, name: str, version: int, *, force: bool = False) -> ResourceOut:
        """Delete the resource of this version; with `force` also while workloads use it. For admins."""
        path, query = resource_path(kind, name), {"force": "true"} if force else {}
        call = Call("DELETE", path, ResourceOut, query=query, version=f'"{version}"', repeatable=False)
        return self._call(call)

    def plan(self, ask: PlanIn) -> PlanOut:
        """Preview applying these documents: the changes, and the people that they affect. For admins."""
        return self._call(Call("POST", "/plan", PlanOut, body=ask))

    def apply(self, ask: ApplyIn) -> PlanOut:
        """Apply documents: all of them, or none. For admins."""
        return self._call(Call("POST", "/apply", PlanOut, body=ask, repeatable=False))

    def git_sources(self) -> Sequence[GitSourceOut]:
        """Git branches that manage resources, with their last commit or error. For admins."""
        return self._get("/git-sources", GitSourceList).items

    def report_git_source(self, name: str, ask: GitSourceIn) -> GitSourceOut:
        """Report the state of a git branch. For admins."""
        return self._call(Call("PUT", f"/git-sources/{quote(name, safe='')}", GitSourceOut, body=ask))

    def export(self) -> ExportOut:
        """All declared platform resources as documents. For admins."""
        return self._get("/export", ExportOut)

    def users(self) -> Sequence[UserOut]:
        """Users of JupyterHub, and others who own work or whose names are retired. For admins."""
        return self._get("/users", UserList).items

    def user(self, name: str) -> UserOut:
        """One user, with groups, roles and the size of the home. For admins."""
        return self._get(f"/users/{quote(name, safe='')}", UserOut)

    def plan_offboarding(self, ask: OffboardingPlanIn) -> OffboardingPlanOut:
        """Preview the renaming or removal of a user or tenant. Changes nothing. For admins."""
        return self._call(Call("POST", "/offboarding-plans", OffboardingPlanOut, body=ask))

    def begin_offboarding(self, ask: OffboardingIn) -> OffboardingOut:
        """Begin a renaming or removal as planned. The same request again returns the first. For admins."""
        return self._call(Call("POST", "/offboardings", OffboardingOut, body=ask))

    def offboardings(self) -> Sequence[OffboardingOut]:
        """Renamings and removals of users and tenants, newest first. For admins."""
        return self._get("/offboardings", OffboardingList).items

    def offboarding(self, offboarding_id: str) -> OffboardingOut:
        """A renaming or removal, with its finished steps and its last error. For admins."""
        return self._get(f"/offboardings/{quote(offboarding_id, safe='')}", OffboardingOut)

    def release_name(self, offboarding_id: str) -> OffboardingOut:
        """Permit others to take the name that a renaming or removal gave up. For admins."""
        path = f"/offboardings/{quote(offboarding_id, safe='')}/release"
        return self._call(Call("POST", path, OffboardingOut))

    def quotas(self, *, tenant: str | None = None, user: str | None = None) -> Sequence[QuotaOut]:
        """Each quota and limit that applies to the user, with the used and the remaining amount. `user` is for
        admins.
        """
        return self._get("/quotas", QuotaList, tenant=tenant, user=user).items

    def node_pools(self) -> Sequence[NodePoolOut]:
        """The node pools: nodes rented while work waits for them, and their cost. For admins."""
        return self._get("/node-pools", NodePoolList).items

    def cron_jobs(self) -> Sequence[CronJobOut]:
        """The user's cron jobs, and those of others whose runs the user may see."""
        return self._get("/cron-jobs", CronJobList).items

    def cron_job(self, cron_job_id: str) -> CronJobOut:
        return self._get(f"/cron-jobs/{quote(cron_job_id, safe='')}", CronJobOut)

    def create_cron_job(self, ask: CronJobIn) -> CronJobOut:
        """Create a job that repeats. A second one of the same name is refused."""
        return self._call(Call("POST", "/cron-jobs", CronJobOut, body=ask, repeatable=False))

    def dry_run_cron_job(self, ask: CronJobIn) -> CronJobOut:
        """The same checks as `create_cron_job`, and the next five times. Creates nothing."""
        return self._call(Call("POST", "/cron-jobs/dry-run", CronJobOut, body=ask))

    def suspend_cron_job(self, cron_job_id: str) -> CronJobOut:
        return self._call(Call("POST", f"/cron-jobs/{quote(cron_job_id, safe='')}/suspend", CronJobOut))

    def resume_cron_job(self, cron_job_id: str) -> CronJobOut:
        return self._call(Call("POST", f"/cron-jobs/{quote(cron_job_id, safe='')}/resume", CronJobOut))

    def trigger_cron_job(self, cron_job_id: str, ask: TriggerIn) -> TriggeredOut:
        """Run it now. With a key in `ask`, a repeated call returns the same run."""
        path = f"/cron-jobs/{quote(cron_job_id, safe='')}/trigger"
        return self._call(Call("POST", path, TriggeredOut, body=ask, repeatable=ask.key is not None))

    def remove_cron_job(self, cron_job_id: str) -> CronJobOut:
        """Remove it. Its runs stay."""
        return self._call(Call("DELETE", f"/cron-jobs/{quote(cron_job_id, safe='')}", CronJobOut, repeatable=False))

    def reservations(self) -> Sequence[ReservationOut]:
        """The reservations of the user's tenants, with their times; for admins all."""
        return self._get("/reservations", ReservationList).items

    def reserve(self, ask: ReservationIn) -> ReservedOut:
        """Reserve resources for a tenant in a window of time. For admins."""
        return self._call(Call("POST", "/reservations", ReservedOut, body=ask, repeatable=False))

    def unreserve(self, reservation_id: str) -> ReservationOut:
        """Cancel a reservation. For admins."""
        return self._call(
            Call("DELETE", f"/reservations/{quote(reservation_id, safe='')}", ReservationOut, repeatable=False)
        )

    def classes(self) -> Sequence[ClassOut]:
        """Classes of the user's tenants, and those that the user attends."""
        return self._get("/classes", ClassList).items

    def one_class(self, name: str) -> ClassOut:
        """One class, with the seat of each student for those who teach."""
        return self._get(class_path(name), ClassOut)

    def put_class(self, name: str, ask: ClassIn) -> ClassOut:
        """Create or replace a class. For teachers and managers of its tenant."""
        return self._call(Call("PUT", class_path(name), ClassOut, body=ask))

    def delete_class(self, name: str, *, force: bool = False) -> ClassOut:
        """Delete a class with its reservations; while its sessions run only with `force`."""
        query = "?force=true" if force else ""
        return self._call(Call("DELETE", f"{class_path(name)}{query}", ClassOut, repeatable=False))

    def send_class_message(self, name: str, text: str) -> ClassOut:
        """Send a message to all students of the meeting that is on."""
        path = f"{class_path(name)}/messages"
        return self._call(Call("POST", path, ClassOut, body=ClassMessageIn(text=text), repeatable=False))

    def ask_student(self, name: str, student: str) -> ConsentOut:
        """Ask a student to be let into the session."""
        return self._call(Call("POST", f"{class_path(name)}/questions", ConsentOut, body=AskIn(student=student)))

    def answer_teacher(self, name: str, teacher: str, *, given: bool) -> ConsentOut:
        """Let a teacher open the user's session in the meeting, or (no longer) not."""
        body = ConsentIn(teacher=teacher, given=given)
        return self._call(Call("POST", f"{class_path(name)}/consents", ConsentOut, body=body))

    def start_class_session(self, name: str) -> WorkloadOut:
        """The user's session in the meeting; started if it does not run."""
        return self._call(Call("POST", f"{class_path(name)}/session", WorkloadOut))

    def registry(self) -> RegistryOut:
        """The address and certificate authority of the site's registry. Raises ApiError if it has none."""
        return self._get("/registry", RegistryOut)

    def collect_registry(self) -> CollectedOut:
        """Delete old images that are not in the catalogue from the registry. For admins."""
        return self._call(Call("POST", "/registry/collect", CollectedOut))

    def info(self) -> InfoOut:
        return self._get("/info", InfoOut)

    def health(self) -> HealthOut:
        """Health of the control plane. Needs no token."""
        return self._get("/health", HealthOut)

    def launch_options(self, user: str | None = None, groups: Sequence[str] = ()) -> LaunchOptions:
        """The launch options, and the free resources. Admins and the hub may ask for `user`, a member of `groups`."""
        return self._get("/launch-options", LaunchOptions, user=user, group=tuple(groups))

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
        ask = TokenIn(note=note, expires_s=expires_s, scopes=scopes)
        return self._call(Call("POST", "/tokens", TokenOut, body=ask, repeatable=False))

    # --- requests -----------------------------------------------------------------------------------------------

    def _get(self, path: str, answer: type[Answer], **query: Any) -> Answer:
        return self._call(Call("GET", path, answer, given(**query)))

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
                    for event in httpx2.EventSource(response, max_event_size=transport.MAX_EVENT_BYTES):
                        if event.event == "error":
                            raise transport.error_in(event)
                        backoff.reset()
                        last_id = event.id or last_id
                        if event.data:
                            yield event
                        if event.event == "end":
                            return
                problem: ApiError = Unreachable("the control plane ended the stream")
            except httpx2.TransportError as error:
                problem, _ = transport.failure(error, self._http.base_url)
            except ApiError as error:
                problem = error
            if not may_repeat(True, problem, True):
                raise problem
            time.sleep(backoff.pause_after(problem))
