"""The double of the API server over HTTP, on a loopback port. Used by `FakeCluster`.

It serves the kinds of `store.KINDS`: get, list in pages, watch, create, patch, apply, delete, logs of Pods, commands in
Pods and connections to their ports, the usage that kubelets report, and reviews of the tokens in `tokens`. All requests
are those of one user, who lacks the rights in `forbidden`. Discovery lists only versions of groups. There is no TLS.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from aiohttp import web

from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes.api import Api
from commonage.testing.fakes.kubernetes.channels import EXEC_PROTOCOLS, PORT_PROTOCOLS, Client
from commonage.testing.fakes.kubernetes.kubelet import Kubelet
from commonage.testing.fakes.kubernetes.store import (
    KINDS,
    NODES,
    PODS,
    ApiError,
    Change,
    Key,
    Kind,
    Store,
    matches_fields,
    matches_labels,
)

_SELF_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
USER = "system:serviceaccount:commonage-system:control"
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
VERSION = "v1.36.0-double"
_PATH = re.compile(
    r"(?P<api>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?"
)
_PLURALS = {(kind.api, kind.plural): kind for kind in KINDS}
_GROUPS = {kind.api.rpartition("/")[0]: kind.api_version for kind in KINDS if kind.api.startswith("/apis/")}
_NO_SUCH = "the server could not find the requested resource"


class Kubelets(Protocol):
    """The nodes, of which the API server asks for logs, streams and use."""

    def kubelet_of(self, pod: Manifest) -> Kubelet:
        """Raises ApiError."""

    def summary(self, node: str) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class _Selected:
    """The selection of a list or watch."""

    kind: Kind
    namespace: str
    labels: Mapping[str, str | None]
    fields: Mapping[str, str]

    def has(self, manifest: Manifest | None) -> bool:
        if manifest is None or self.namespace not in ("", manifest["metadata"].get("namespace", "")):
            return False
        return matches_labels(manifest, self.labels) and matches_fields(manifest, self.fields)

    def event(self, change: Change) -> Manifest | None:
        """The change as a watch tells it; None if it is not about this."""
        if change.kind is not self.kind:
            return None
        was, is_ = self.has(change.before), self.has(change.after)
        if is_:
            return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
        if not was or change.before is None:
            return None
        last = dict(change.before)
        last["metadata"] = last["metadata"] | {"resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": last}


class ApiServer:
    """`outage`: while it is set, requests are answered with 503 and watches end.

    `tokens`: the user that a token is of, and its audience. `forbidden`: pairs of verb and resource.
    """

    def __init__(self, store: Store, api: Api, kubelets: Kubelets) -> None:
        self._store, self._api, self._kubelets = store, api, kubelets
        self._pages: dict[str, tuple[list[Manifest], str]] = {}
        self._numbers = count()
        self._watches: set[asyncio.Queue[Manifest | None]] = set()
        self._is_out = False
        self.tokens: dict[str, tuple[Manifest, str]] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def open(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def close(self) -> None:
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- on demand ------------------------------------------------------------------------------------------------

    def end_watches(self) -> None:
        for queue in tuple(self._watches):
            queue.put_nowait(None)

    def expire(self) -> None:
        """End all watches and forget the history and pages: the next watch is answered with 410."""
        self._store.forget_history()
        self._pages.clear()
        self.end_watches()

    def set_outage(self, is_out: bool) -> None:
        self._is_out = is_out
        if is_out:
            self.end_watches()

    def bookmark(self) -> None:
        """Tell all watches the version."""
        for queue in self._watches:
            queue.put_nowait({"type": "BOOKMARK", "object": {}})

    # --- requests -------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if self._is_out:
                raise ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            if request.path == "/version":
                return web.json_response({"gitVersion": VERSION})
            if request.path == _TOKEN_REVIEWS:
                return web.json_response(self._review(await _body(request)), status=201)
            if request.path == _SELF_REVIEWS:
                return web.json_response({"status": {"userInfo": {"username": USER}}}, status=201)
            if request.path in _GROUPS:
                return web.json_response(
                    {"kind": "APIGroup", "preferredVersion": {"groupVersion": _GROUPS[request.path]}}
                )
            found = _PATH.fullmatch(request.path)
            kind = _PLURALS.get((found["api"], found["plural"])) if found else None
            if found is None or kind is None:
                raise ApiError(404, "NotFound", _NO_SUCH)
            key = (found["namespace"] or "", found["name"] or "")
            self._authorize(request.method, kind, key)
            handler = self._handler(request.method, found["name"], found["sub"])
            return await handler(request, kind, key)
        except ApiError as error:
            return web.json_response(_status(error), status=error.http_status)

    def _authorize(self, method: str, kind: Kind, key: Key) -> None:
        verb = {"POST": "create", "GET": "get" if key[1] else "list"}.get(method, method.lower())
        if (verb, kind.plural) not in self.forbidden:
            return
        group = kind.api.removeprefix("/api").removeprefix("s/").partition("/")[0] if "/apis/" in kind.api else ""
        where = f'in the namespace "{key[0]}"' if key[0] else "at the cluster scope"
        raise ApiError(
            403,
            "Forbidden",
            f'{kind.plural} "{key[1]}" is forbidden: User "{USER}" cannot {verb} resource "{kind.plural}" in API group '
            f'"{group}" {where}',
        )

    def _handler(
        self, method: str, name: str | None, sub: str | None
    ) -> Callable[[web.Request, Kind, Key], Awaitable[web.StreamResponse]]:
        known = {
            ("GET", False, None): self._list,
            ("POST", False, None): self._create,
            ("GET", True, None): self._get,
            ("PATCH", True, None): self._patch,
            ("PATCH", True, "status"): self._patch,
            ("DELETE", True, None): self._delete,
            ("GET", True, "log"): self._log,
            ("GET", True, "exec"): self._exec,
            ("GET", True, "portforward"): self._forward,
            ("GET", True, "proxy/stats/summary"): self._summary,
        }
        if (handler := known.get((method, name is not None, sub))) is None:
            raise ApiError(404, "NotFound", _NO_SUCH)
        return handler

    def _review(self, review: Manifest) -> Manifest:
        user, audience = self.tokens.get(review["spec"]["token"], (None, ""))
        if user is None or audience not in review["spec"]["audiences"]:
            return {**review, "status": {"user": {}, "error": "invalid bearer token"}}
        return {**review, "status": {"authenticated": True, "user": user, "audiences": [audience]}}

    async def _get(self, _request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        return web.json_response(self._store.get(kind, key))

    async def _create(self, request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        manifest = await _body(request)
        if kind.is_namespaced:
            manifest["metadata"].setdefault("namespace", key[0])
        return web.json_response(self._api.create(kind, manifest), status=201)

    async def _patch(self, request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        body, query = await _body(request), request.query
        if request.content_type == "application/apply-patch+yaml":
            if "fieldManager" not in query:
                told = "fieldManager: Required value: is required for apply patch"
                raise ApiError(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: {told}')
            body["metadata"] |= {"name": key[1]} | ({"namespace": key[0]} if kind.is_namespaced else {})
            force = query.get("force") == "true"
            found, is_new = self._api.apply(kind, key, body, query["fieldManager"], force=force)
            return web.json_response(found, status=201 if is_new else 200)
        if request.content_type not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            raise ApiError(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        strategic = request.content_type.startswith("application/strategic")
        status = request.path.endswith("/status")
        return web.json_response(self._api.patch(kind, key, body, strategic=strategic, status=status))

    async def _delete(self, request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        options = await _body(request) if request.body_exists else {}
        if "gracePeriodSeconds" in request.query:
            options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
        found = self._api.delete(kind, key, options)
        if kind is PODS:
            return web.json_response(found)
        details = {"name": key[1], "kind": kind.plural, "uid": found["metadata"]["uid"]}
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details})

    async def _log(self, request: web.Request, _kind: Kind, key: Key) -> web.StreamResponse:
        pod = self._store.get(PODS, key)
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        lines = self._kubelets.kubelet_of(pod).log(pod, container, request.query)
        first = await anext(lines, None)  # a refusal comes before the first line
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        if first is not None:
            await response.write(first)
            async for line in lines:
                await response.write(line)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request, _kind: Kind, key: Key) -> web.StreamResponse:
        pod, query = self._store.get(PODS, key), request.query
        container = query.get("container") or pod["spec"]["containers"][0]["name"]
        kubelet = self._kubelets.kubelet_of(pod)
        words, has_terminal = query.getall("command"), query.get("tty") == "true"
        command = kubelet.command(pod, container, words, has_terminal=has_terminal)
        stream = web.WebSocketResponse(protocols=EXEC_PROTOCOLS, max_msg_size=0)
        await stream.prepare(request)
        await kubelet.exec(command, Client(stream))
        return stream

    async def _forward(self, request: web.Request, _kind: Kind, key: Key) -> web.StreamResponse:
        pod = self._store.get(PODS, key)
        kubelet = self._kubelets.kubelet_of(pod)
        stream = web.WebSocketResponse(protocols=PORT_PROTOCOLS, max_msg_size=0)
        await stream.prepare(request)
        await kubelet.forward(pod, int(request.query["ports"]), Client(stream))
        return stream

    async def _summary(self, _request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        if kind is not NODES:
            raise ApiError(404, "NotFound", _NO_SUCH)
        self._store.get(NODES, key)
        return web.json_response(self._kubelets.summary(key[1]))

    # --- lists and watches ----------------------------------------------------------------------------------------

    async def _list(self, request: web.Request, kind: Kind, key: Key) -> web.StreamResponse:
        query = request.query
        selected = _Selected(
            kind, key[0], _labels(query.get("labelSelector", "")), _fields(query.get("fieldSelector", ""))
        )
        if query.get("watch") in ("1", "true"):
            return await self._watch(request, selected)
        if more := query.get("continue"):
            if more not in self._pages:
                told = "The provided continue parameter is too old to display a consistent list result"
                raise ApiError(410, "Expired", told)
            items, version = self._pages.pop(more)
        else:
            items = [one for one in self._store.all(kind, key[0]) if selected.has(one)]
            version = str(self._store.version)
        limit = int(query.get("limit") or 0) or len(items)
        metadata = {"resourceVersion": version}
        if len(items) > limit:
            metadata["continue"] = f"page-{next(self._numbers)}"
            self._pages[metadata["continue"]] = (items[limit:], version)
        listed = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        shown = [{part: one[part] for part in one if part not in ("kind", "apiVersion")} for one in items[:limit]]
        return web.json_response(listed | {"items": shown})

    async def _watch(self, request: web.Request, selected: _Selected) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        version = int(request.query.get("resourceVersion") or 0)
        if version < self._store.oldest:
            error = ApiError(410, "Expired", f"too old resource version: {version} ({self._store.oldest})")
            await _tell(response, {"type": "ERROR", "object": _status(error)})
            return response
        queue: asyncio.Queue[Manifest | None] = asyncio.Queue()

        def take(change: Change) -> None:
            if change.version > version and (event := selected.event(change)) is not None:
                queue.put_nowait(event)

        for change in self._store.history:
            take(change)
        stop = self._store.listen(take)
        self._watches.add(queue)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 1800)):
                while (event := await queue.get()) is not None:
                    await _tell(response, self._dated(event, selected.kind))
        except TimeoutError:
            if request.query.get("allowWatchBookmarks") in ("1", "true"):
                await _tell(response, self._dated({"type": "BOOKMARK", "object": {}}, selected.kind))
        finally:
            stop()
            self._watches.discard(queue)
        return response

    def _dated(self, event: Manifest, kind: Kind) -> Manifest:
        if event["type"] != "BOOKMARK":
            return event
        metadata = {"resourceVersion": str(self._store.version)}
        return {"type": "BOOKMARK", "object": {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}}


async def _tell(response: web.StreamResponse, event: Manifest) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the object provided is unrecognized: {error}") from error
    return found


def _status(error: ApiError) -> Manifest:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.http_status,
    }


def _labels(text: str) -> dict[str, str | None]:
    pairs = (one.replace("==", "=").partition("=") for one in text.split(",") if one)
    return {name: value if equals else None for name, equals, value in pairs}


def _fields(text: str) -> dict[str, str]:
    pairs = (one.replace("==", "=").partition("=") for one in text.split(",") if one)
    return {name: value for name, _, value in pairs}
