"""The listener that sites dial: mutual TLS 1.3, the hello, and the choice of a protocol. `links` serves the links."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from commonage import __version__
from commonage.domain.codec import from_json
from commonage.domain.errors import CommonageError
from commonage.link.admissions import Admissions, listen_at
from commonage.link.certificate_authority import CertificateAuthority, key_digest
from commonage.link.connection import FRAME_ERRORS, close_writer, encode_frame, read_frame
from commonage.link.exchange import error_text, message_frame
from commonage.link.messages import SERVER_NAME, LinkRefused
from commonage.link.sites.messages.hello import SITE_URI, Protocols, SiteHello, SiteWelcome
from commonage.link.sites.registry import SiteRegistry
from commonage.link.sites.transport.tls_streams import listen
from commonage.link.tls import server_context

_log = logging.getLogger(__name__)
_TIMEOUT_S = 10.0


class SiteListenError(CommonageError):
    """The port cannot be listened on; the message says why, and which setting names it."""

    code = "sites-port"


@dataclass(frozen=True, slots=True)
class AdmittedSite:
    """A connected site, as its certificate identifies it, and what its hello said. `key` is its key's digest.

    `tunnel`: the connection is no link, but the tunnel connection that has this number.
    """

    name: str
    key: str
    until: float
    protocol: int
    version: str
    clock_offset_s: float
    address: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    tunnel: int | None = None


class SiteListener:
    """`serve` serves a link or a tunnel connection from the welcome to its end. `now` gives unix seconds."""

    def __init__(
        self,
        authority: CertificateAuthority,
        registry: SiteRegistry,
        serve: Callable[[AdmittedSite], Awaitable[None]],
        now: Callable[[], float],
        protocols: Protocols,
    ) -> None:
        self._authority, self._registry, self._serve = authority, registry, serve
        self._now, self._protocols = now, protocols
        self._server: asyncio.Server | None = None
        self._admissions = Admissions(self._admit)

    async def open(self, bind: str, port: int) -> int:
        """Listen; returns the port, which is a free one for 0. Raises SiteListenError."""
        try:
            listening = listen_at(bind, port)
        except OSError as error:
            raise SiteListenError(
                f"the listener for sites cannot open {bind}, port {port}: {error.strerror or error}; set sites_port "
                "to a free port"
            ) from error
        pair = await asyncio.to_thread(self._authority.serve, [SERVER_NAME])
        context = await asyncio.to_thread(server_context, pair, self._authority.certificate)
        self._server = await listen(listening, context, self._admissions.begin, _TIMEOUT_S)
        found: int = listening.getsockname()[1]
        return found

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._admissions.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, key, until = _identity(writer)
        try:
            frame = await read_frame(reader, _TIMEOUT_S)
            reason = await self._refusal(name, key, frame)
            if reason:
                _log.warning("the site %s is refused: %s", name or "without a name", reason)
                refused = LinkRefused(reason, permanent=True)
                writer.write(encode_frame(message_frame("refused", refused)))
                await writer.drain()
                return
            hello = from_json(SiteHello, frame["body"], ignore_unknown=True)
            now = self._now()
            offset = now - hello.now
            protocol = self._protocols.agree(hello.protocols) or 0  # checked above
            welcome = SiteWelcome(protocol, __version__, now, until, offset)
            writer.write(encode_frame(message_frame("welcome", welcome)))
            if hello.probe:
                await writer.drain()
                return
            address = str((writer.get_extra_info("peername") or ("",))[0])
            version = hello.version[:64]
            await self._serve(
                AdmittedSite(name, key, until, protocol, version, offset, address, reader, writer, hello.tunnel)
            )
        except (TimeoutError, *FRAME_ERRORS) as error:
            _log.info("the site %s sent no valid hello: %s", name, error_text(error))
        except CommonageError as error:
            _log.error("the site %s cannot be admitted: %s", name, error.message)
        finally:
            await close_writer(writer)

    async def _refusal(self, name: str, key: str, frame: Mapping[str, Any]) -> str:
        """Why a site with this certificate and this first frame is refused; empty if it is admitted.

        Raises Unreadable, Unavailable.
        """
        if frame.get("message") != "hello" or not isinstance(frame.get("body"), dict):
            return "the first frame is not a hello"
        if not name:
            return "its certificate names no site"
        # Checked before everything else: another protocol may have other fields.
        theirs = from_json(Protocols, frame["body"].get("protocols"), ignore_unknown=True)
        if self._protocols.agree(theirs) is None:
            older = "site" if theirs.newest < self._protocols.oldest else "control plane"
            return f"the site speaks protocol {theirs}, the control plane {self._protocols}: upgrade the {older}"
        hello = from_json(SiteHello, frame["body"], ignore_unknown=True)
        if hello.site != name:
            return f"its hello names {hello.site[:64]}, and its certificate {name}"
        if not await asyncio.to_thread(self._registry.admits, name, key):
            return f"the site {name} was revoked, or another machine joined as it: join again with a new token"
        await asyncio.to_thread(self._registry.used, name, key)
        return ""


def _identity(writer: asyncio.StreamWriter) -> tuple[str, str, float]:
    """The site's name, the digest of its key, and the end of its certificate. Without one, the name is empty."""
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    sites = [uri.removeprefix(SITE_URI) for uri in uris if uri.startswith(SITE_URI)]
    name = sites[0] if len(sites) == 1 else ""
    return name, key_digest(certificate.public_key()), certificate.not_valid_after_utc.timestamp()
