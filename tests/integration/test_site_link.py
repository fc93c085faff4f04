"""The link of a site over real TLS: admission, versions, clocks, renewal, revocation, and attacks on each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.waiting import until
from tests.integration.site_link_world import ECHO, NAME, SERVES, Text, World, first_answer, hello, site_world

from commonage.domain.errors import EngineFailure
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Nothing
from commonage.link.sites.credentials import NotJoined, SiteCredentials
from commonage.link.sites.messages.hello import Protocols
from commonage.link.sites.transport.connection import SiteConnection

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with site_world(tmp_path) as made:
        yield made


# --- links ------------------------------------------------------------------------------------------------------------


async def test_a_site_connects_and_serves_requests_and_streams(world: World) -> None:
    world.dial(world.joined(), SERVES)
    link = await world.connected()
    assert await link.request(NAME, Nothing()) == Text("an appliance")
    async with await link.open(ECHO, Nothing()) as stream:
        await stream.write(b"over TLS")
        assert await stream.read() == b"over TLS"
    found = world.links.link("lab")
    assert found is not None
    assert found.site.address == "127.0.0.1"


async def test_a_site_that_is_away_is_named_by_the_error(world: World) -> None:
    with pytest.raises(EngineFailure, match="lab is not connected") as caught:
        world.links.connection("lab")
    assert caught.value.is_retryable


async def test_a_new_link_replaces_the_old_one(world: World) -> None:
    credentials = world.joined()
    first_dial = world.dial(credentials, SERVES)
    first = await world.connected()
    world.dial(credentials, SERVES)
    await until(lambda: first.is_closed)
    first_dial.cancel()
    second = await world.connected()
    assert await second.request(NAME, Nothing()) == Text("an appliance")


async def test_a_site_connects_again_after_the_control_plane_restarted(tmp_path: Path) -> None:
    async with site_world(tmp_path) as world:
        credentials = world.joined()
        dialing = world.dial(credentials, SERVES)
        link = await world.connected()
        port = world.links.port
        await world.links.close()
        assert link.is_closed
        await world.links.open("127.0.0.1", port)
        await world.connected()
        assert not dialing.done()


async def test_a_site_without_an_identity_does_not_dial(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotJoined, match="site join"):
        await world.dial(SiteCredentials(tmp_path / "nothing"))


# --- versions and clocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "control", "spoken"),
    [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((2, 3), (1, 2), 2), ((1, 2), (1, 2), 2)],
    ids=["older site", "newer site", "ranges that overlap", "equal"],
)
async def test_the_newest_common_protocol_is_spoken(
    tmp_path: Path, site: tuple[int, int], control: tuple[int, int], spoken: int
) -> None:
    async with site_world(tmp_path, protocols=Protocols(*control)) as world:
        world.dial(world.joined(), SERVES, protocols=Protocols(*site))
        link = await world.connected()
        assert link.protocol == spoken
        assert await link.request(NAME, Nothing()) == Text("an appliance")


@pytest.mark.parametrize(("protocols", "older"), [(Protocols(3, 4), "control plane"), (Protocols(0, 0), "site")])
async def test_a_site_without_a_common_protocol_is_told_which_side_to_upgrade(
    world: World, protocols: Protocols, older: str
) -> None:
    answer = await first_answer(world, world.joined(), hello(protocols=protocols))
    assert answer["message"] == "refused"
    assert f"upgrade the {older}" in str(answer["body"])


async def test_both_sides_know_how_far_their_clocks_differ(world: World) -> None:
    offsets: list[float] = []

    async def note(_: SiteConnection, welcome: object) -> None:
        offsets.append(getattr(welcome, "clock_offset_s", 0.0))
        await asyncio.Event().wait()

    world.dial(world.joined(), SERVES, on_connected=note, now=lambda: time.time() - 60)
    link = await world.connected()
    await until(lambda: offsets and link.clock_offset_s)
    assert 59 < offsets[0] < 65
    assert 59 < link.clock_offset_s < 65


# --- certificates -----------------------------------------------------------------------------------------------------


async def test_a_certificate_is_renewed_with_a_new_key_before_it_ends(world: World) -> None:
    credentials = world.joined()
    before = credentials.identity()
    short = replace(before, until=time.time() + 5 * DAY_S)
    credentials.keep(short)
    dialing = world.dial(credentials, SERVES)
    await world.connected()
    await until(lambda: credentials.identity().key != before.key)
    dialing.cancel()
    await world.gone()
    world.dial(credentials, SERVES)
    await world.connected()
    [entry] = world.registry.sites()
    assert len(entry.keys) == 1
    old = await first_answer(world, credentials, hello(), before.context())
    assert old["message"] == "refused", "the key of before holds no more once the new one was used"


async def test_a_revoked_site_loses_its_link_and_is_refused(world: World) -> None:
    credentials = world.joined()
    world.dial(credentials, SERVES)
    link = await world.connected()
    stream = await link.open(ECHO, Nothing())
    world.registry.revoke("lab")
    await world.links.check()
    assert link.is_closed
    with pytest.raises(ConnectionLost, match="revoked"):
        await stream.read()
    answer = await first_answer(world, credentials, hello())
    assert answer["message"] == "refused"


async def test_a_link_ends_when_its_certificate_expires(world: World) -> None:
    world.dial(world.joined(), SERVES)
    link = await world.connected()
    world.clock.ahead_s = 31 * DAY_S
    await world.links.check()
    assert link.is_closed


async def test_a_site_that_joins_again_replaces_the_machine_of_before(world: World) -> None:
    first = world.joined()
    world.dial(first, SERVES)
    link = await world.connected()
    second = world.joined()
    await world.links.check()
    assert link.is_closed
    assert (await first_answer(world, first, hello()))["message"] == "refused"
    assert (await first_answer(world, second, hello()))["message"] == "welcome"
