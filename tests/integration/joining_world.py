"""For tests of the door for machines, and of what admins ask of it: the socket is real, Swarm and agents are fakes."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integration.api_world import URL, WallClock

from commonage.domain.errors import EngineFailure
from commonage.joining.door import MachinesDoor
from commonage.joining.fetch import NAME, Door
from commonage.joining.office import Office, Site
from commonage.joining.tokens import Tokens
from commonage.link.bundle import make_bundle
from commonage.link.ca import Authority
from commonage.ports.joining import Admission
from commonage.wire.hub import PORTAL_PATH


@dataclass
class FakeSwarm:
    """A Swarm with these machines: state by id."""

    nodes: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    removed: list[tuple[str, bool]] = field(default_factory=list)
    token: int = 1

    async def admission(self) -> Admission:
        if self.trouble:
            raise EngineFailure(self.trouble)
        return Admission(f"SWMTKN-1-{self.token}", ("10.0.0.1:2377",))

    async def renew_token(self) -> None:
        if self.trouble:
            raise EngineFailure(self.trouble)
        self.token += 1

    async def members(self, node: str) -> Mapping[str, str]:
        return self.nodes

    async def remove(self, node: str, *, down_only: bool = False) -> int:
        if self.trouble:
            raise EngineFailure(self.trouble)
        self.removed.append((node, down_only))
        return len(self.nodes)


@dataclass
class World:
    """All of it. `connected` are the machines whose agents are."""

    office: Office
    authority: Authority
    tokens: Tokens
    swarm: FakeSwarm
    at: str
    shared: Path
    connected: list[str]
    cut: list[str]

    def door(self, token: str | None = None, authority: str | None = None) -> Door:
        made = token or self.tokens.make([self.at], time.time())
        return Door(made, authority or self.authority.certificate)

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """As a machine does."""
        return await asyncio.to_thread(self.door().post, path, body)


@asynccontextmanager
async def opened(folder: Path, names: tuple[str, ...] = (NAME,), ahead_s: float = 0) -> AsyncIterator[World]:
    """All of it for a while. Its certificates are called so, and are made at another time than this machine's."""
    authority = await asyncio.to_thread(Authority.open, folder / "ca", now=lambda: time.time() + ahead_s)
    tokens, swarm, connected = Tokens(folder / "secret", authority.fingerprint), FakeSwarm(), list[str]()
    cut: list[str] = []

    async def revoke(node: str, *, gone: bool = False) -> None:
        authority.revoke(node)
        cut.append(node)

    def heard() -> list[Any]:
        return [SimpleNamespace(node=one, connected=True) for one in connected]

    agents: Any = SimpleNamespace(heard=heard, revoke=revoke)
    site = Site("Lab", f"{URL}{PORTAL_PATH}join", ("10.0.0.1:8445",), ("10.0.0.1:8444",), folder / "shared")
    office = Office(site, authority, tokens, swarm, WallClock())
    await asyncio.to_thread(office.open, make_bundle(), agents)
    door = MachinesDoor(office)
    pair = authority.serve(names)
    port = await door.start("127.0.0.1", 0, pair.cert_pem, pair.key_pem)
    try:
        yield World(office, authority, tokens, swarm, f"127.0.0.1:{port}", folder / "shared", connected, cut)
    finally:
        await door.stop()


def request_for(name: str, folder: Path) -> str:
    """A certificate request as a machine makes it."""
    key = folder / "key"
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    ask = ["openssl", "req", "-new", "-key", str(key), "-subj", f"/CN={name}"]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout
