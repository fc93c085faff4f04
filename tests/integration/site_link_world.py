"""For tests of the site link: a control plane's listener on the loopback, and sites that joined without a network."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.waiting import until

from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import encode_frame
from commonage.link.exchange import message_frame
from commonage.link.messages import SERVER_NAME, Nothing, RequestType
from commonage.link.sites.credentials import SiteCredentials, SiteIdentity, new_key, signing_request
from commonage.link.sites.dialer import Backoff, SiteDialer
from commonage.link.sites.links import SiteLinks
from commonage.link.sites.messages.hello import Protocols, SiteHello
from commonage.link.sites.registry import SiteRegistry
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.link.sites.transport.streams import Stream, StreamType
from commonage.ports.agents import OnProgress
from commonage.server.processes.ports import free_port

QUICK = Backoff(first_s=0.05, longest_s=0.2, refused_s=0.2)


class Clock:
    """The wall clock, which a test may set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class World:
    folder: Path
    authority: CertificateAuthority
    registry: SiteRegistry
    links: SiteLinks
    clock: Clock
    _dialing: list[asyncio.Task[None]] = field(default_factory=list)

    def joined(
        self, site: str = "lab", port: int = 0, authority: CertificateAuthority | None = None
    ) -> SiteCredentials:
        """The credentials of a site that has joined, in a folder of their own."""
        credentials = SiteCredentials(self.folder / f"{site}-{len(list(self.folder.iterdir()))}")
        key = credentials.pending_key()
        signed = (authority or self.authority).sign_site(signing_request(key, site), site)
        self.registry.invite(site, "token", time.time() + 600)
        self.registry.join(site, "token", signed.key)
        address = f"127.0.0.1:{port or self.links.port}"
        credentials.keep(
            SiteIdentity(site, (address,), self.authority.certificate, signed.pem, key, signed.until, "token")
        )
        return credentials

    def dial(self, credentials: SiteCredentials, handlers: Handlers | None = None, **more: Any) -> asyncio.Task[None]:
        """Keep the site's link until the test ends, or the task is cancelled."""
        dialer = SiteDialer(credentials, handlers or Handlers(), backoff=QUICK, **more)
        task = asyncio.create_task(dialer.run())
        self._dialing.append(task)
        return task

    async def connected(self, site: str = "lab") -> SiteConnection:
        await until(lambda: self.links.link(site) is not None)
        return self.links.connection(site)

    async def gone(self, site: str = "lab") -> None:
        await until(lambda: self.links.link(site) is None)

    async def end(self) -> None:
        for task in self._dialing:
            task.cancel()
        await asyncio.gather(*self._dialing, return_exceptions=True)
        await self.links.close()


@asynccontextmanager
async def site_world(
    folder: Path, handlers: Callable[[str], Handlers] = lambda _: Handlers(), **more: Any
) -> AsyncIterator[World]:
    clock = Clock()
    authority = CertificateAuthority.open(folder / "authority", now=clock)
    registry = SiteRegistry(folder / "authority" / "sites.json", clock)
    links = SiteLinks(authority, registry, handlers, now=clock, **more)
    await links.open("127.0.0.1", free_port())
    world = World(folder, authority, registry, links, clock)
    try:
        yield world
    finally:
        await world.end()


def other_key_request(site: str) -> str:
    return signing_request(new_key(), site)


@dataclass(frozen=True, slots=True)
class Text:
    text: str


NAME = RequestType("name", Nothing, Text, 5.0)
ECHO = StreamType("echo", Nothing)


async def _name(_: Nothing, __: OnProgress) -> Text:
    return Text("an appliance")


async def _echo(_: Nothing, stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


SERVES = Handlers(requests={NAME: _name}, streams={ECHO: _echo})


async def first_answer(
    world: World, credentials: SiteCredentials, first: bytes, context: ssl.SSLContext | None = None
) -> dict[str, object]:
    """The first line that the listener answers to these bytes; empty if it closes the connection."""
    context = context or credentials.identity().context()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.links.port, ssl=context, server_hostname=SERVER_NAME
    )
    try:
        writer.write(first)
        line = await reader.readline()
    except (ConnectionError, ssl.SSLError):
        line = b""
    finally:
        writer.transport.abort()
    return dict(json.loads(line)) if line else {}


def hello(site: str = "lab", protocols: Protocols | None = None) -> bytes:
    return encode_frame(message_frame("hello", SiteHello(site, protocols or Protocols(), "1.0", time.time())))
