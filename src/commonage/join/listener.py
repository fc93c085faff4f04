"""The join listener: HTTPS on a separate port, with a certificate of the site's own authority.

It is separate from the agents' listener, which requires a client certificate: a node that joins has only a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput
from commonage.join.client import AUTHORITY_PATH, POD_PATH, SITE_PATH
from commonage.join.config import IdentityProof
from commonage.join.pods import PodJoins
from commonage.join.service import JoinService
from commonage.ports.registry import machine_user
from commonage.ports.sites import JoinedSite

log = logging.getLogger(__name__)

SCRIPT_PATH = "/join.sh"
_MAX_BYTES = 64 * 1024
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SiteJoins(Protocol):
    """Lets machines join as sites."""

    async def join(self, token: str, csr_pem: str) -> JoinedSite:
        """Raises Forbidden for a token that is not valid, InvalidInput."""
        ...


class JoinListener:
    """`join_service` admits machines, `sites` admits sites, `pods` admits node agents in Pods. None: all refused."""

    def __init__(
        self, join_service: JoinService | None, sites: SiteJoins | None = None, pods: PodJoins | None = None
    ) -> None:
        self._machines, self._sites, self._pods = join_service, sites, pods
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int, cert_pem: str, key_pem: str) -> int:
        """Start; returns the port (a free one for 0). Raises OSError if the address is not available."""
        app = web.Application(client_max_size=_MAX_BYTES, middlewares=[self._guard])
        app.router.add_get(SCRIPT_PATH, self._script)
        app.router.add_get("/bundle", self._bundle)
        app.router.add_post("/join-config", self._join_config)
        app.router.add_post("/certificate", self._certificate)
        app.router.add_post("/registration", self._registration)
        app.router.add_get(AUTHORITY_PATH, self._authority)
        app.router.add_post(SITE_PATH, self._site)
        app.router.add_post(POD_PATH, self._pod)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        context = await asyncio.to_thread(server_context, cert_pem, key_pem)
        await web.TCPSite(self._runner, address, port, ssl_context=context).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check the token first, then turn errors into a status and a message."""
        try:
            # The others check a join token. The first two need no token, the last two check one of their own.
            if request.path not in (AUTHORITY_PATH, SCRIPT_PATH, SITE_PATH, POD_PATH):
                await self._join_service.admit(_token(request))
            return await handler(request)
        except CommonageError as error:
            extra = {"peer": request.remote, "path": request.path, "reason": error.message}
            log.info("a node was refused", extra=extra)
            return web.json_response({"detail": error.message}, status=error.status)
        except web.HTTPException as error:
            return web.json_response(
                {"detail": f"{request.method} {request.path}: {error.reason}"}, status=error.status
            )

    @property
    def _join_service(self) -> JoinService:
        if self._machines is None:
            raise Forbidden("no machine can join this control plane: set site_address")
        return self._machines

    async def _authority(self, _: web.Request) -> web.Response:
        return web.Response(text=self._join_service.authority, content_type="application/x-pem-file")

    async def _site(self, request: web.Request) -> web.Response:
        if self._sites is None:
            raise Forbidden("no site can join this control plane")
        joined = await self._sites.join(_token(request), _text(await _body(request), "csr"))
        return web.json_response(
            {"site": joined.site, "certificate": joined.certificate, "until": joined.until, "port": joined.port}
        )

    async def _pod(self, request: web.Request) -> web.Response:
        if self._pods is None:
            raise Forbidden("this control plane has no node agents in Pods: set kubernetes_agents")
        joined = await self._pods.join(_token(request), _text(await _body(request), "csr"))
        return web.json_response({"node": joined.node, "certificate": joined.certificate})

    async def _bundle(self, _: web.Request) -> web.Response:
        return web.Response(body=(await self._join_service.kit()).bundle, content_type="application/gzip")

    async def _script(self, _: web.Request) -> web.Response:
        return web.Response(text=(await self._join_service.kit()).script, content_type="text/x-shellscript")

    async def _join_config(self, _: web.Request) -> web.Response:
        return web.json_response((await self._join_service.join_config()).to_json())

    async def _certificate(self, request: web.Request) -> web.Response:
        body = await _body(request)
        node = _text(body, "node")
        proof = IdentityProof(_text(body, "swarm_certificates"), _text(body, "signature"))
        admitted = await self._join_service.certificate(_token(request), node, _text(body, "csr"), proof)
        login = f"{machine_user(node)}:{admitted.account}"
        return web.json_response({"certificate": admitted.certificate, "registry_login": login})

    async def _registration(self, request: web.Request) -> web.Response:
        body = {"serial": "", **await _body(request)}
        node, node_id, serial = (_text(body, name) for name in ("node", "node_id", "serial"))
        return web.json_response(await self._join_service.registration(node, node_id, serial))


def server_context(cert_pem: str, key_pem: str) -> ssl.SSLContext:
    """TLS for a server with this certificate, without client certificates. Blocks for a moment."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The module reads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="commonage-join-") as folder:
        pair = Path(folder, "pair.pem")
        pair.touch(0o600)
        pair.write_text(key_pem + cert_pem, encoding="utf-8")
        context.load_cert_chain(pair)
    return context


def _token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Forbidden("a join token is required: create one with `commonage node token`")
    return token.strip()


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError:
        raise InvalidInput("the body is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidInput("the body is not a JSON object")
    return body


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text", field=name)
    return value
