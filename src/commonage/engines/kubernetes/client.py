"""The Kubernetes API: objects as manifests, and its errors as EngineFailure. Used by the engine.

lightkube reads the kubeconfig or the service account, and authenticates. Objects go in and out as the API's own JSON,
so that no field is lost that a typed model does not know. lightkube is imported when a client is opened: no other site
needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

from commonage.domain.codec import cleaned
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForCluster
from commonage.engines.containers.attempt_backend import Unreachable as Away
from commonage.engines.kubernetes.cache import Event, Expired, Listed
from commonage.engines.kubernetes.channels.connection import Connections
from commonage.engines.kubernetes.manifest import Manifest

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

FIELD_MANAGER = "commonage"
_TIMEOUT_S = 30.0
_WATCH_S = 60
"""The server ends each watch after this time, and the next one continues: a dead connection is noticed by then."""
_PAGE = 500
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/strategic-merge-patch+json"
_ESCAPES = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")  # of NUL and surrogates
_AWAY = frozenset({429, 502, 503, 504})


class Unreachable(Away):
    """The API server does not answer: the result of the request is unknown. Ask again."""

    waiting: Reason = WaitingForCluster()  # type: ignore[misc]  # of the class, for another system


class Refused(EngineFailure):
    """The API server refused a request, with an HTTP status and its own text."""

    def __init__(self, status: int, text: str, what: str) -> None:
        super().__init__(f"the cluster refused to {what}: {text}", retryable=status >= 500)
        self.http_status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, and the path of its API. `is_namespaced`: each lies in a namespace."""

    api: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The path of one object, or of all in a namespace (None: in the cluster)."""
        middle = f"/namespaces/{namespace}" if namespace is not None and self.is_namespaced else ""
        return "/".join(part for part in (f"{self.api}{middle}/{self.plural}", name, subresource) if part)


PODS = Resource("/api/v1", "pods")
NODES = Resource("/api/v1", "nodes", is_namespaced=False)
SECRETS = Resource("/api/v1", "secrets")
VOLUME_CLAIMS = Resource("/api/v1", "persistentvolumeclaims")
CONFIG_MAPS = Resource("/api/v1", "configmaps")
NAMESPACES = Resource("/api/v1", "namespaces", is_namespaced=False)


class Client:
    """One API server. `kubeconfig` None: the Pod's service account, or KUBECONFIG, or ~/.kube/config."""

    def __init__(self, kubeconfig: Path | None = None, context: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._context = context or None
        self._config: SingleConfig | None = None
        self._http: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Read the configuration. Blocks briefly; raises EngineFailure. Nothing is sent yet."""
        from lightkube.config.client_adapter import AsyncClient, ConnectionParams  # noqa: PLC0415 - Kubernetes sites only
        from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415 - Kubernetes sites only
        from lightkube.core.exceptions import ConfigError  # noqa: PLC0415 - Kubernetes sites only

        try:
            path = self._kubeconfig
            found = KubeConfig.from_env() if path is None else KubeConfig.from_file(path.expanduser())
            config = found.get(self._context)
            if config is None:
                raise EngineFailure("the kubeconfig has no current context: set kubernetes_context")
            timeout = httpx.Timeout(_TIMEOUT_S)
            http = AsyncClient(config, ConnectionParams(timeout=timeout, trust_env=False))
        except (ConfigError, OSError, KeyError, ValueError) as error:
            where = self._kubeconfig or "in the Pod, in KUBECONFIG or in ~/.kube/config"
            raise EngineFailure(
                f"there is no usable kubeconfig ({where}): {error}; set kubernetes_kubeconfig"
            ) from error
        self._config, self._http = config, http

    def channels(self) -> Connections:
        """Streams of the same server, for the caller to close. Blocks briefly; raises EngineFailure."""
        if self._config is None:
            raise _not_open()
        return Connections(self._config)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    # --- objects ------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        return str((await self.get("/version"))["gitVersion"])

    async def get(self, path: str, **params: str) -> Manifest:
        return await self._ask("GET", path, f"show {path}", params=params)

    async def find(self, path: str) -> Manifest | None:
        """The object; None if it does not exist."""
        try:
            return await self.get(path)
        except Refused as error:
            if error.http_status == 404:
                return None
            raise

    async def apply(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Create the object, or change our fields of it (server-side apply, forced)."""
        metadata = manifest["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return await self._ask(
            "PATCH",
            path,
            f"apply {resource.plural}/{metadata['name']}",
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            content=json.dumps(manifest),
            headers={"Content-Type": _APPLY},
        )

    async def create(self, path: str, manifest: Manifest) -> Manifest:
        """Create an object that is not stored, such as a SelfSubjectAccessReview; return the answer."""
        return await self._ask("POST", path, f"answer {path}", json=manifest)

    async def merge(self, path: str, patch: Manifest) -> Manifest:
        """Change some fields by a strategic merge. A `metadata.uid` in it is a condition."""
        return await self._ask(
            "PATCH",
            path,
            f"change {path}",
            params={"fieldManager": FIELD_MANAGER},
            content=json.dumps(patch),
            headers={"Content-Type": _MERGE},
        )

    async def delete(
        self, path: str, *, grace_s: int | None = None, uid: str | None = None, version: str | None = None
    ) -> bool:
        """Delete the object; False if it does not exist, or its uid or resourceVersion is another one."""
        conditions = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if conditions:
            body["preconditions"] = conditions
        try:
            await self._ask("DELETE", path, f"delete {path}", content=json.dumps(body))
        except Refused as error:
            if error.http_status in (404, 409):
                return False
            raise
        return True

    async def _ask(self, method: str, path: str, what: str, **request: Any) -> Manifest:
        with _errors():
            answer = await self._open_http.request(method, path, **request)
            _check(answer.status_code, answer.content, what)
            return _parsed(answer.content)

    @property
    def _open_http(self) -> httpx.AsyncClient:
        if self._http is None:
            raise _not_open()
        return self._http

    # --- lists and watches ----------------------------------------------------------------------------------------

    async def list_all(self, path: str, selector: str = "") -> Listed:
        """All objects, read page by page, and the version of the list."""
        params = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        items: list[Manifest] = []
        more = ""
        while True:
            try:
                page = await self.get(path, **params, **({"continue": more} if more else {}))
            except Refused as error:
                if error.http_status == 410 and more:  # the pages took too long: begin again
                    items, more = [], ""
                    continue
                raise
            items += page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return Listed(items, str(page["metadata"]["resourceVersion"]))

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncGenerator[Event]:
        """Changes after `version`. Ends after `_WATCH_S`; then watch again. Raises Expired if `version` is too old.

        The first event is a bookmark without a version. It shows that the server answers, even if nothing changes.
        """
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        } | ({"labelSelector": selector} if selector else {})
        with _errors():
            async with self._stream(path, params, f"watch {path}", read_s=_WATCH_S + _TIMEOUT_S) as answer:
                yield Event("BOOKMARK", {"metadata": {}})
                async for line in _lines(answer.aiter_bytes()):
                    if line:
                        yield _event(_parsed(line))

    @asynccontextmanager
    async def _stream(
        self, path: str, params: Mapping[str, str], what: str, read_s: float | None
    ) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(_TIMEOUT_S, read=read_s)
        async with self._open_http.stream("GET", path, params=params, timeout=timeout) as answer:
            if answer.status_code != 200:
                _check(answer.status_code, await answer.aread(), what)
            yield answer

    # --- logs -----------------------------------------------------------------------------------------------------

    async def logs(self, path: str, container: str, *, since: str | None, follow: bool) -> AsyncGenerator[bytes]:
        """Output of a container, each line after its time stamp; `since` is a time stamp, read to the second."""
        params = {"container": container, "timestamps": "true"}
        params |= {"sinceTime": since} if since else {}
        params |= {"follow": "true"} if follow else {}
        with _errors():
            async with self._stream(path, params, "show a log", None if follow else _TIMEOUT_S) as answer:
                async for chunk in answer.aiter_raw():
                    yield chunk


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """httpx also splits at other line ends, such as U+0085, which an annotation of a Pod may contain."""
    parts: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for one in others:
            yield b"".join(parts)
            parts = [one]
    yield b"".join(parts)


def _parsed(content: bytes) -> Manifest:
    """Texts in it are as a database can hold them: others than the API server write them."""
    found: Manifest = json.loads(content)
    return cleaned(found) if _ESCAPES.search(content) else found


def _not_open() -> EngineFailure:
    return EngineFailure("the client of the cluster is not open")


def _event(line: Manifest) -> Event:
    kind, found = str(line["type"]), line["object"]
    if kind != "ERROR":
        return Event(kind, found)
    if found.get("code") == 410 or found.get("reason") in ("Expired", "Gone"):
        raise Expired(str(found.get("message", "")))
    raise Unreachable(f"the cluster ended a watch: {found.get('message', found)}")


def _check(status: int, content: bytes, what: str) -> None:
    if status < 300:
        return
    try:
        text = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        text = content.decode("utf-8", "replace").strip()[:500] or f"HTTP status {status}"
    if status == 410:
        raise Expired(text)
    if status in _AWAY:
        raise Unreachable(f"the cluster cannot {what} now: {text}")
    if status == 401 or (status == 403 and " cannot " in text):  # by RBAC, not by a quota or a policy
        text += " (docs: operate/kubernetes, the rights of the service account)"
    raise Refused(status, text, what)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        words = str(error) or type(error).__name__
        raise Unreachable(f"the API server of the cluster does not answer: {words}") from error
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, and too many brackets
        raise Unreachable(f"the API server of the cluster sent an answer that is not JSON: {error}") from error
