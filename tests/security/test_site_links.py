"""Attacks on the link of sites: by strangers, by nodes, and by a site that joined."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from tests.fakes.waiting import until
from tests.integration.site_link_world import (
    ECHO,
    NAME,
    SERVES,
    Text,
    World,
    first_answer,
    hello,
    other_key_request,
    site_world,
)

from commonage.domain.errors import EngineFailure
from commonage.link.certificate_authority import CertificateAuthority
from commonage.link.connection import encode_frame
from commonage.link.messages import RENEW, SERVER_NAME, Nothing, SigningRequest
from commonage.link.sites.credentials import signing_request
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.link.sites.transport.frames import MAX_OPEN_BYTES, FrameType, encode
from commonage.link.sites.transport.streams import Stream

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with site_world(tmp_path) as made:
        yield made


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
