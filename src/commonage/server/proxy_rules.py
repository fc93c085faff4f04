"""How the proxy gets its rules: from files of a shared folder, or over HTTP where there is no such folder.

Over HTTP the proxy asks. So a proxy that starts has all rules at once, any number of proxies can run, and hub and
control plane need not know them. While one of them does not answer, its last rules stay in force.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import httpx2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.domain.errors import Unavailable
from commonage.server.data_dir import write_private
from commonage.server.http_client import http_client
from commonage.wire.hub import CONTROL_RULES_PATH

log = logging.getLogger(__name__)

_EVERY_S = 0.25
_FORGET_PROXY_S = 15.0  # a new Pod may get the address of a proxy that ended
_MAX_BYTES = 64 * 1024 * 1024
PROXY_USER = "hub"
READY_PATH = "/ready"

PutRules = Callable[[str], Awaitable[None]]
"""Puts traefik's rules for services, as JSON, in force. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A file in the folder that traefik watches."""

    path: Path

    async def put(self, text: str) -> None:
        try:
            await asyncio.to_thread(self._write, text)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be written: {error}") from error

    def _write(self, text: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.path, text)


class ServedRules:
    """Serves the control plane's rules to proxies that know `token`. Before the first rules it answers 503.

    A request with the token comes from a proxy, so no setting lists the addresses of proxies.
    """

    def __init__(self, token: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._expected = f"token {token}"
        self._monotonic = monotonic
        self._text: bytes | None = None
        self._tag = ""
        self._asked: dict[str, float] = {}  # when a proxy asked last, by its address

    def proxies(self) -> list[str]:
        """Addresses of the proxies that run."""
        oldest = self._monotonic() - _FORGET_PROXY_S
        self._asked = {address: at for address, at in self._asked.items() if at >= oldest}
        return sorted(self._asked)

    async def put(self, text: str) -> None:
        self._text = text.encode()
        self._tag = f'"{hashlib.sha256(self._text).hexdigest()}"'

    def route(self) -> Route:
        return Route(CONTROL_RULES_PATH, self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), self._expected.encode()):
            return Response(status_code=403)
        if request.client is not None:
            self._asked[request.client.host] = self._monotonic()
        if self._text is None:
            return Response(status_code=503)
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers={"ETag": self._tag})
        return Response(self._text, media_type="application/json", headers={"ETag": self._tag})


def api_rules(api_url: str, token: str) -> str:
    """The rules that let the hub use traefik's own API at `api_url`; without them it waits for ever, and so would the
    proxy for the hub's rules.
    """
    # traefik checks this hash at every call. A slow hash guards weak passwords; the token is 256 random bits.
    hashed = bcrypt.hashpw(token.encode(), bcrypt.gensalt(rounds=4)).decode()
    router = {
        "rule": f"Host(`{urlsplit(api_url).hostname}`) && PathPrefix(`/api`)",
        "entryPoints": ["auth_api"],
        "service": "api@internal",
        "middlewares": ["auth_api"],
    }
    middleware = {"basicAuth": {"users": [f"{PROXY_USER}:{hashed}"]}}
    return json.dumps({"http": {"routers": {"route_api": router}, "middlewares": {"auth_api": middleware}}})


def ready_rules() -> str:
    """The rule by which traefik answers at READY_PATH of its API's port."""
    router = {"rule": f"Path(`{READY_PATH}`)", "entryPoints": ["auth_api"], "service": "ping@internal"}
    return json.dumps({"http": {"routers": {"ready": router}}})


@dataclass(frozen=True, slots=True)
class RulesSource:
    """`url` serves the rules that belong into `file` of the folder that traefik watches."""

    name: str
    url: str
    file: Path


async def follow_rules(source: RulesSource, token: str, every_s: float = _EVERY_S) -> None:
    """Keep the file equal to what the source serves. Never returns; a problem is logged when it begins."""
    file, tag, problem = RulesFile(source.file), "", ""
    async with http_client(timeout=10) as client:
        while True:
            try:
                text, tag = await _fetch(client, source, token, tag)
                if text is not None:
                    await file.put(text)
                    log.info("rules of %s: %d bytes", source.name, len(text))
                found = ""
            except (httpx2.HTTPError, Unavailable, ValueError) as error:
                found, tag = str(error) or type(error).__name__, ""
            if found and found != problem:
                log.warning("no rules from %s: %s; the last ones stay in force", source.name, found)
            problem = found
            await asyncio.sleep(every_s)


async def _fetch(client: httpx2.AsyncClient, source: RulesSource, token: str, tag: str) -> tuple[str | None, str]:
    """The rules and their tag; None if they are still those of `tag`. Raises httpx2.HTTPError, ValueError."""
    headers: Mapping[str, str] = {"Authorization": f"token {token}", **({"If-None-Match": tag} if tag else {})}
    answer = await client.get(source.url, headers=headers)
    if answer.status_code == httpx2.codes.NOT_MODIFIED:
        return None, tag
    answer.raise_for_status()
    if len(answer.content) > _MAX_BYTES or "http" not in json.loads(answer.text):
        raise ValueError(f"{source.url} does not answer with traefik's rules")
    return answer.text, answer.headers.get("etag", "")
