"""Two ends of a site link over a pair of sockets, for tests of what they carry."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from commonage.link.sites.messages.hello import PROTOCOL
from commonage.link.sites.transport.connection import Handlers, LinkEnd, SiteConnection


@asynccontextmanager
async def connected_pair(
    control: Handlers | None = None, site: Handlers | None = None, *, name: str = "lab", protocol: int = PROTOCOL
) -> AsyncIterator[tuple[SiteConnection, SiteConnection]]:
    """The control plane's end and the site's, with what each serves; both run until the exit."""
    here, there = socket.socketpair()
    control_end = SiteConnection(
        LinkEnd(name, f"the site {name}", dialed=False, protocol=protocol),
        *await asyncio.open_connection(sock=here),
        control or Handlers(),
    )
    site_end = SiteConnection(
        LinkEnd(name, "the control plane", dialed=True, protocol=protocol),
        *await asyncio.open_connection(sock=there),
        site or Handlers(),
    )
    running = [asyncio.create_task(end.run()) for end in (control_end, site_end)]
    try:
        yield control_end, site_end
    finally:
        control_end.close("the test has ended")
        await asyncio.gather(*running, return_exceptions=True)
