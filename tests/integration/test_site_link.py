"""The link of a site over real TLS: admission, versions, clocks, renewal, revocation, and attacks on each."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from tests.fakes.waiting import until
from tests.integration.site_link_world import World, other_key_request, site_world

from commonage.domain.errors import EngineFailure
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import encode_frame
from commonage.link.exchange import ConnectionLost, message_frame
from commonage.link.messages import RENEW, SERVER_NAME, Nothing, RequestType, SigningRequest
from commonage.link.sites.connection import Handlers, SiteConnection
from commonage.link.sites.credentials import NotJoined, SiteCredentials, signing_request
from commonage.link.sites.frames import MAX_OPEN_BYTES, FrameType, encode
from commonage.link.sites.messages import Protocols, SiteHello
from commonage.link.sites.streams import Stream, StreamType
from commonage.ports.agents import OnProgress

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Text:
    text: str


NAME = RequestType("name", Nothing, Text, 5.0)
ECHO = StreamType("echo", Nothing)
DAY_S = 86_400.0


async def _name(_: Nothing, __: OnProgress) -> Text:
    return Text("an appliance")


async def _echo(_: Nothing, stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


SERVES = Handlers(requests={NAME: _name}, streams={ECHO: _echo})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with site_world(tmp_path) as made:
        yield made


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


# --- attacks ----------------------------------------------------------------------------------------------------------


async def test_a_certificate_of_another_authority_is_refused(world: World, tmp_path: Path) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    assert await first_answer(world, world.joined(authority=other), hello()) == {}


async def test_a_control_plane_of_another_authority_is_not_trusted(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    credentials = world.joined()
    credentials.keep(replace(credentials.identity(), authority=other.certificate))
    dialing = world.dial(credentials, SERVES)
    await until(lambda: "not the control plane of this site" in caplog.text)
    assert world.links.link("lab") is None
    assert not dialing.done()


async def test_a_client_without_a_certificate_is_refused(world: World) -> None:
    context = ssl.create_default_context(cadata=world.authority.certificate)
    assert await first_answer(world, world.joined(), hello(), context) == {}


async def test_tls_below_1_3_is_refused(world: World) -> None:
    context = world.joined().identity().context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", world.links.port, ssl=context, server_hostname=SERVER_NAME)


async def test_a_site_cannot_speak_for_another(world: World) -> None:
    world.joined("clinic")
    credentials = world.joined("lab")
    answer = await first_answer(world, credentials, hello("clinic"))
    assert answer["message"] == "refused"
    assert world.links.link("clinic") is None


async def test_the_certificate_of_a_node_opens_no_site_link(world: World) -> None:
    credentials = world.joined()
    identity = credentials.identity()
    node = world.authority.sign(signing_request(identity.key, "lab"), "lab", "abc123")
    answer = await first_answer(world, credentials, hello(), replace(identity, certificate=node).context())
    assert answer["message"] == "refused"


async def test_a_site_renews_its_own_certificate_only(world: World) -> None:
    world.joined("clinic")
    connections: list[SiteConnection] = []

    async def keep(connection: SiteConnection, _: object) -> None:
        connections.append(connection)
        await asyncio.Event().wait()

    world.dial(world.joined("lab"), SERVES, on_connected=keep)
    await until(lambda: connections)
    renewed = await connections[0].request(RENEW, SigningRequest(other_key_request("clinic")))
    identity = world.joined("other").identity()
    assert "commonage:site:lab" in _uris(renewed.pem)
    assert "commonage:site:other" in _uris(identity.certificate)
    assert len(next(one for one in world.registry.sites() if one.name == "clinic").keys) == 1


@pytest.mark.parametrize(
    "first",
    [
        b"x" * 300_000 + b"\n",
        b"[]\n",
        b'{"message":"hello"}\n',
        b'{"message":"hello","body":{"protocols":7}}\n',
        encode_frame({"message": "tunnel", "body": {}}),
    ],
    ids=["oversized", "no object", "no body", "odd body", "a tunnel"],
)
async def test_a_first_frame_that_is_no_hello_ends_the_connection(world: World, first: bytes) -> None:
    answer = await first_answer(world, world.joined(), first)
    assert answer.get("message") in (None, "refused")
    world.dial(world.joined("clinic"), SERVES)
    await world.connected("clinic")


BAD = {
    "a frame of 4 GiB": struct.pack(">IBQ", 2**32 - 1, FrameType.CONTROL, 0),
    "an oversized open": struct.pack(">IBQ", MAX_OPEN_BYTES + 1, FrameType.OPEN, 1),
    "deep JSON": encode(FrameType.CONTROL, 0, b"[" * 100_000),
    "no JSON": encode(FrameType.CONTROL, 0, b"\xff"),
    "credit for nothing": encode(FrameType.CREDIT, 1, b"\0\0\0\1"),
}


@pytest.mark.parametrize("frame", BAD.values(), ids=BAD.keys())
async def test_a_site_that_breaks_the_protocol_loses_only_its_own_link(world: World, frame: bytes) -> None:
    world.dial(world.joined("clinic"), SERVES)
    other = await world.connected("clinic")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.links.port, ssl=world.joined().identity().context(), server_hostname=SERVER_NAME
    )
    writer.write(hello())
    await reader.readline()
    await world.connected("lab")
    writer.write(frame)
    await world.gone("lab")
    writer.transport.abort()
    assert await other.request(NAME, Nothing()) == Text("an appliance")


async def test_a_flood_of_streams_is_refused_and_the_link_stays(tmp_path: Path) -> None:
    async def hold(_: Nothing, stream: Stream) -> None:
        stream.accept()
        await asyncio.Event().wait()

    served = Handlers(streams={ECHO: hold}, max_incoming=5)
    async with site_world(tmp_path, lambda _: served) as world:
        connections: list[SiteConnection] = []

        async def keep(connection: SiteConnection, _: object) -> None:
            connections.append(connection)
            await asyncio.Event().wait()

        world.dial(world.joined(), SERVES, on_connected=keep)
        await until(lambda: connections)
        results = await asyncio.gather(
            *(connections[0].open(ECHO, Nothing()) for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(one, Stream) for one in results) == 5
        assert sum(isinstance(one, EngineFailure) for one in results) == 45
        assert await (await world.connected()).request(NAME, Nothing()) == Text("an appliance")


def _uris(pem: str) -> list[str]:
    names = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)
