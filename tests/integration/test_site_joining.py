"""A machine joins as a site: tokens, the join listener, the API of admins, and what must not work."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.api_world import URL, serving
from tests.integration.joining_world import FakeSwarm
from tests.integration.site_link_world import QUICK, World, site_world

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput, NotFound
from commonage.join.client import NAME
from commonage.join.listener import JoinListener, SiteJoins
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.sites.credentials import SiteCredentials, SiteIdentity
from commonage.link.sites.dialer import SiteDialer
from commonage.link.sites.messages.hello import PROTOCOL
from commonage.link.sites.service import InviteRules, SiteService
from commonage.link.sites.transport.connection import Handlers
from commonage.ports.sites import SiteState
from commonage.server.bootstrap import SystemClock
from commonage.site_agent.join import CannotJoin, join
from commonage.wire.hub import API_PATH

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer admin:root"}


class MovableClock(SystemClock):
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Door:
    """The control plane's side, at the address `at`."""

    world: World
    sites: SiteService
    tokens: Tokens
    clock: MovableClock
    join_service: JoinService
    at: str = ""

    async def token(self, name: str = "clinic", for_s: int = 600) -> str:
        return (await self.sites.token(name, for_s)).token

    async def join(self, folder: Path, token: str, address: str = "") -> SiteIdentity:
        return await asyncio.to_thread(join, SiteCredentials(folder), token, address or self.at)

    @asynccontextmanager
    async def listening(self, sites: SiteJoins) -> AsyncIterator[str]:
        """The join listener; yields its address."""
        listener = JoinListener(self.join_service, sites)
        pair = self.world.authority.serve([NAME])
        port = await listener.start("127.0.0.1", 0, pair.cert_pem, pair.key_pem)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await listener.stop()

    async def state(self, name: str = "clinic") -> SiteState:
        return next(one.state for one in await self.sites.sites() if one.name == name)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Door]:
    async with site_world(folder) as world:
        authority, clock = world.authority, MovableClock()
        world.registry._now = clock.now
        tokens = Tokens(folder / "secret", authority.fingerprint)
        rules = InviteRules(("127.0.0.1:1",), frozenset({"local"}))
        sites = SiteService(authority, world.registry, world.links, tokens, clock, rules)
        site = Site("Lab", f"{URL}/join", ("127.0.0.1:1",), ("127.0.0.1:1",), folder / "shared")
        door = Door(world, sites, tokens, clock, JoinService(site, authority, tokens, FakeSwarm(), clock))
        async with door.listening(sites) as door.at:
            yield door


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with opened(tmp_path) as made:
        yield made


async def test_a_machine_with_a_token_joins_and_connects(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    assert await door.state() is SiteState.INVITED
    identity = await door.join(tmp_path / "appliance", token)
    assert identity.site == "clinic"
    assert identity.addresses == (f"127.0.0.1:{door.world.links.port}",)
    assert await door.state() is SiteState.DISCONNECTED
    door.world.dial(SiteCredentials(tmp_path / "appliance"))
    await door.world.connected("clinic")
    [view] = await door.sites.sites()
    assert (view.state, view.protocol, view.address) == (SiteState.CONNECTED, PROTOCOL, "127.0.0.1")
    assert view.certificate_until is not None


async def test_only_the_owner_reads_the_key_and_no_copy_is_left(door: Door, tmp_path: Path) -> None:
    await door.join(tmp_path / "appliance", await door.token())
    [file] = (tmp_path / "appliance").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "appliance").stat().st_mode & 0o777 == 0o700


async def test_a_known_authority_is_not_written_again(door: Door, tmp_path: Path) -> None:
    """An agent that starts again on a full disk must not need to write it."""
    credentials = SiteCredentials(tmp_path / "appliance")
    identity = await door.join(tmp_path / "appliance", await door.token())
    credentials.keep_authority(identity)
    kept = credentials.authority.stat()
    credentials.keep_authority(identity)
    assert (credentials.authority.stat().st_ino, credentials.authority.read_text()) == (kept.st_ino, identity.authority)


async def test_joining_again_with_the_same_token_changes_nothing(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    first = await door.join(tmp_path / "appliance", token)
    assert await door.join(tmp_path / "appliance", token) == first


async def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_key(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    folder = tmp_path / "appliance"
    first = await door.join(folder, token)
    (folder / "identity.json").unlink()
    (folder / "joining.key").write_text(first.key)  # as before the answer was written
    again = await door.join(folder, token)
    assert again.key == first.key
    door.world.dial(SiteCredentials(folder))
    await door.world.connected("clinic")


async def test_a_used_token_lets_no_other_machine_in(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    await door.join(tmp_path / "appliance", token)
    with pytest.raises(Forbidden, match="used already"):
        await door.join(tmp_path / "thief", token)
    assert not (tmp_path / "thief" / "identity.json").exists()


async def test_a_token_expires(door: Door, tmp_path: Path) -> None:
    token = await door.token(for_s=60)
    door.clock.ahead_s = 61
    with pytest.raises(Forbidden, match="expired"):
        await door.join(tmp_path / "appliance", token)


async def test_a_newer_token_replaces_an_older_one(door: Door, tmp_path: Path) -> None:
    old = await door.token()
    new = await door.token()
    with pytest.raises(Forbidden, match="replaced"):
        await door.join(tmp_path / "appliance", old)
    await door.join(tmp_path / "appliance", new)


async def test_a_revoked_or_removed_site_needs_a_new_token(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    await door.join(tmp_path / "appliance", token)
    door.world.dial(SiteCredentials(tmp_path / "appliance"))
    link = await door.world.connected("clinic")
    await door.sites.revoke("clinic")
    assert link.is_closed
    assert await door.state() is SiteState.REVOKED
    (tmp_path / "appliance" / "identity.json").unlink()
    with pytest.raises(Forbidden, match="revoked"):
        await door.join(tmp_path / "appliance", token)
    unused = await door.token()
    await door.sites.remove("clinic")
    assert await door.sites.sites() == []
    with pytest.raises(Forbidden, match="revoked"):
        await door.join(tmp_path / "appliance", unused)
    await door.join(tmp_path / "appliance", await door.token())
    assert await door.state() is SiteState.DISCONNECTED


async def test_a_refused_site_connects_once_it_joined_again(door: Door, tmp_path: Path) -> None:
    folder = tmp_path / "appliance"
    await door.join(folder, await door.token())
    dialing = door.world.dial(SiteCredentials(folder))
    await door.world.connected("clinic")
    await door.sites.revoke("clinic")
    await door.world.gone("clinic")
    await door.join(folder, await door.token())
    await door.world.connected("clinic")
    assert not dialing.done()


async def test_a_control_plane_with_another_authority_gets_no_token(door: Door, tmp_path: Path) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    foreign = Tokens(tmp_path / "other" / "secret", other.fingerprint)
    token = foreign.make_for_site("clinic", [door.at], time.time(), 600)
    with pytest.raises(CannotJoin, match="not the control plane that made this token"):
        await door.join(tmp_path / "appliance", token)
    assert not (tmp_path / "appliance").exists()


async def test_an_address_where_nothing_answers_is_named(door: Door, tmp_path: Path) -> None:
    with pytest.raises(CannotJoin, match="cannot be reached"):
        await door.join(tmp_path / "appliance", await door.token(), "127.0.0.1:1")


def _changed(token: str, **fields: Any) -> str:
    version, body, signature = token.split(".")
    content = {**json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))), **fields}
    return f"{version}.{base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip('=')}.{signature}"


async def test_forged_tokens_and_tokens_of_nodes_are_refused(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    node = door.tokens.make([door.at], time.time())
    for bad in (_changed(token, site="hospital"), _changed(node, purpose="site", site="clinic"), node, "nonsense", ""):
        with pytest.raises(Forbidden):
            await door.join(tmp_path / "appliance", bad)
    with pytest.raises(Forbidden):
        door.tokens.check(token, time.time())


@pytest.mark.parametrize("name", ["local", "", "Upper", "a/b", "-a", "a" * 41, "ä", "a b"])
async def test_names_that_cannot_be_sites_are_refused(door: Door, name: str) -> None:
    with pytest.raises(InvalidInput):
        await door.sites.token(name, 600)


async def test_an_unknown_site_is_not_found(door: Door) -> None:
    with pytest.raises(NotFound):
        await door.sites.revoke("nowhere")
    with pytest.raises(NotFound):
        await door.sites.remove("nowhere")


async def test_a_bad_request_for_a_certificate_does_not_use_the_token(door: Door, tmp_path: Path) -> None:
    token = await door.token()
    with pytest.raises(CommonageError):
        await door.sites.join(token, "no request")
    await door.join(tmp_path / "appliance", token)


async def test_admins_manage_sites_by_the_api(door: Door, tmp_path: Path) -> None:
    async with serving(tmp_path, run=False, sites=door.sites) as made:
        transport = httpx2.ASGITransport(app=made.app)
        async with httpx2.AsyncClient(transport=transport, base_url=f"{URL}{API_PATH}", headers=ADMIN) as client:
            answer = await client.post("/sites/clinic/token", json={"for_s": 600})
            assert answer.status_code == 201
            assert answer.json()["command"].startswith("commonage site join")
            async with door.listening(made.control.sites) as at:
                await door.join(tmp_path / "appliance", answer.json()["token"], at)
            dialer = SiteDialer(SiteCredentials(tmp_path / "appliance"), Handlers(), backoff=QUICK)
            dialing = asyncio.create_task(dialer.run())
            await door.world.connected("clinic")
            [listed] = (await client.get("/sites")).json()["items"]
            assert (listed["name"], listed["state"]) == ("clinic", "connected")
            assert (await client.post("/sites/clinic/revoke")).status_code == 200
            await until(lambda: door.world.links.link("clinic") is None)
            assert (await client.delete("/sites/clinic")).status_code == 200
            assert (await client.get("/sites")).json() == {"items": []}
            missing = await client.delete("/sites/clinic")
            assert (missing.status_code, missing.json()["code"]) == (404, "site-not-found")
            for method, path in (
                ("GET", "/sites"), ("POST", "/sites/x/token"), ("POST", "/sites/x/revoke"), ("DELETE", "/sites/x"),
            ):  # fmt: skip
                refused = await client.request(method, path, headers={"Authorization": "Bearer ann"})
                assert refused.status_code == 403
            found = [one["reason"] for one in (await client.get("/events")).json()["items"] if one["kind"] == "audit"]
            assert [(one["code"], one["params"]["site"], one["params"].get("by")) for one in found] == [
                ("SiteTokenCreated", "clinic", "root"), ("SiteJoined", "clinic", None),
                ("SiteRevoked", "clinic", "root"), ("SiteRemoved", "clinic", "root"),
            ]  # fmt: skip
            dialing.cancel()
            await asyncio.gather(dialing, return_exceptions=True)
