"""The join listener on a real socket: which nodes it admits, and its answers."""

from __future__ import annotations

import asyncio
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import httpx2
import pytest
from tests.integration.joining_world import SwarmAuthority, World, opened

from commonage.agent.join_and_run import authority_of
from commonage.agent.steps.host import Host
from commonage.join.client import JoinRefused, unpack
from commonage.join.config import MARK_FILE, JoinConfig
from commonage.join.tokens import Tokens
from commonage.link.certificate_authority import CertificateAuthority
from commonage.server.processes.registry import PlatformRegistry, RegistryPlan

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as made:
        yield made


def platform_registry(authority: CertificateAuthority, folder: Path) -> PlatformRegistry:
    """The registry's door-keeper; the registry itself does not run."""
    plan = RegistryPlan(folder, folder, "127.0.0.1", 5000, "localhost", "http://localhost/token", 30)
    return PlatformRegistry(plan, authority, "the control plane's own")


async def test_a_node_with_a_token_is_told_the_terms(world: World) -> None:
    join_config = JoinConfig.from_json(await world.ask("/join-config"))
    assert (join_config.site, join_config.managers, join_config.swarm_token) == (
        "Lab",
        ("10.0.0.1:2377",),
        "SWMTKN-1-1",
    )
    assert join_config.authority == world.authority.certificate
    assert abs(join_config.now - time.time()) < 60
    assert (world.shared / MARK_FILE).read_text().strip() == join_config.mark


async def test_the_token_alone_tells_whose_certificate_to_believe(world: World, tmp_path: Path) -> None:
    token = world.tokens.make([world.at], time.time())
    assert await asyncio.to_thread(authority_of, Host(), token) == world.authority.certificate
    other = Tokens(tmp_path / "other", "0" * 64).make([world.at], time.time())
    with pytest.raises(JoinRefused, match="does not send the certificate"):
        await asyncio.to_thread(authority_of, Host(), other)
    away = world.tokens.make(["127.0.0.1:1"], time.time())
    with pytest.raises(JoinRefused, match=r"127\.0\.0\.1:1 cannot be reached"):
        await asyncio.to_thread(authority_of, Host(), away)


async def test_the_bundle_holds_the_program_and_nothing_leads_out(world: World, tmp_path: Path) -> None:
    packed = await asyncio.to_thread(world.join_client().get, "/bundle")
    (tmp_path / "bundle").write_bytes(packed)
    unpack(str(tmp_path / "bundle"), str(tmp_path / "out"))
    assert (tmp_path / "out/commonage/agent/join.py").is_file()
    evil = BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), BytesIO())
    (tmp_path / "evil.tar.gz").write_bytes(evil.getvalue())
    with pytest.raises(JoinRefused):
        unpack(str(tmp_path / "evil.tar.gz"), str(tmp_path / "out"))
    assert not (tmp_path / "evil").exists()


async def test_who_is_not_vouched_for_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with opened(tmp_path / "a") as ours, opened(tmp_path / "b") as others:
        token = ours.tokens.make([others.at], time.time())
        with pytest.raises(JoinRefused, match="no certificate of the site's authority"):
            await asyncio.to_thread(ours.join_client(token).get, "/bundle")


async def test_a_certificate_of_ours_for_something_else_does_not_do(tmp_path: Path) -> None:
    async with opened(tmp_path, ("registry.site",)) as world:
        with pytest.raises(JoinRefused, match="no certificate of the site"):
            await asyncio.to_thread(world.join_client().get, "/bundle")


@pytest.mark.parametrize(("days", "why"), [(1, "not yet valid"), (-1000, "has expired")])
async def test_whose_clock_is_far_off_is_told_to_set_it(tmp_path: Path, days: int, why: str) -> None:
    async with opened(tmp_path, ahead_s=days * 86400) as world:
        with pytest.raises(JoinRefused, match=rf"clock says 20.* {why}\): set the clock with `timedatectl"):
            await asyncio.to_thread(world.join_client().get, "/bundle")


async def test_nobody_at_the_address_is_said_with_what_to_do(world: World) -> None:
    token = world.tokens.make(["127.0.0.1:1"], time.time())
    with pytest.raises(JoinRefused, match=r"127\.0\.0\.1:1 cannot be reached: .* firewall"):
        await asyncio.to_thread(world.join_client(token).get, "/bundle")
    both = world.tokens.make(["127.0.0.1:1", world.at], time.time())
    assert await asyncio.to_thread(world.join_client(both).get, "/bundle")


async def test_without_a_good_token_there_is_nothing(world: World) -> None:
    token, expired = (world.tokens.make([world.at], time.time() - ago) for ago in (0, 7200))
    with pytest.raises(JoinRefused, match="has expired: create a new one with `commonage node token`"):
        await asyncio.to_thread(world.join_client(expired).get, "/bundle")
    world.tokens.revoke_all()
    for path in ("/join-config", "/certificate", "/registration"):
        with pytest.raises(JoinRefused, match="revoked"):
            await asyncio.to_thread(world.join_client(token).post, path, {})
    # TLS is looked at by the others; here it is the absence of a token that matters.
    async with httpx2.AsyncClient(verify=False) as client:
        for header in ({}, {"Authorization": "Bearer"}, {"Authorization": "Basic eA=="}):
            assert (await client.get(f"https://{world.at}/bundle", headers=header)).status_code == 403


def _asking(**fields: str) -> dict[str, str]:
    """The body of a request for a certificate."""
    certificates, _ = SwarmAuthority().node("n1")
    return {"node": "gpu-1", "csr": "x", "swarm_certificates": certificates, "signature": "eA==", **fields}


async def test_what_cannot_be_read_is_refused_in_words(world: World) -> None:
    for path, body, why in (
        ("/certificate", {}, "node must be a text"),
        ("/certificate", {"node": "gpu-1", "csr": "x"}, "swarm_certificates must be a text"),
        ("/certificate", _asking(csr="x", swarm_certificates="x"), "the Swarm certificate cannot be read"),
        ("/certificate", _asking(node=" "), "not a valid node name"),
        ("/certificate", _asking(signature="%"), "the signature is not base64"),
        ("/registration", {"node": "gpu-1"}, "node_id must be a text"),
        ("/registration", {"node": "gpu-1", "node_id": "n1", "serial": "zz"}, "not a serial number"),
        ("/nowhere", {}, "Not Found"),
    ):
        with pytest.raises(JoinRefused, match=why):
            await world.ask(path, **body)


async def test_a_node_is_vouched_for_and_can_be_put_out(world: World, tmp_path: Path) -> None:
    world.swarm.nodes["old"] = ("gpu-1", "down")
    signed = (await world.join("gpu-1", "n1", tmp_path))["certificate"]
    assert world.swarm.removed == ["old"], "a lost node of the same name does not prevent the join"
    (tmp_path / "crt").write_text(signed)
    shown = ["openssl", "x509", "-in", str(tmp_path / "crt"), "-noout", "-serial"]
    ran = await asyncio.to_thread(subprocess.run, shown, check=True, capture_output=True, text=True)
    serial = ran.stdout.strip().partition("=")[2]
    seen = await world.ask("/registration", node="gpu-1", node_id="n1", serial=serial)
    assert seen == {"revoked": False, "connected": False, "swarm": "ready", "taken": ""}
    token = world.tokens.make([world.at], time.time())
    said = await world.join_service.remove_node("gpu-1")
    assert len(said) == 4
    with pytest.raises(JoinRefused, match="revoked"):
        await asyncio.to_thread(world.join_client(token).post, "/join-config", {})
    assert world.cut == ["gpu-1"], "its link ends at once"
    assert (await world.ask("/join-config"))["swarm_token"] == "SWMTKN-1-2", (
        "what it knows of the Swarm is worth nothing"
    )
    assert world.swarm.removed == ["old", "n1"]
    seen = await world.ask("/registration", node="gpu-1", node_id="n1", serial=serial)
    assert seen == {"revoked": True, "connected": False, "swarm": "", "taken": ""}


async def test_the_name_of_a_node_that_is_here_is_taken(world: World, tmp_path: Path) -> None:
    await world.join("gpu-1", "n1", tmp_path)
    world.connected.append(("gpu-1", "n1"))
    with pytest.raises(JoinRefused, match="host name, or remove the other node with `commonage node rm gpu-1`"):
        await world.join("gpu-1", "n2", tmp_path)
    await world.join("gpu-1", "n1", tmp_path)  # the node itself joins again


async def test_a_swarm_in_trouble_does_not_keep_a_node_in(world: World) -> None:
    world.swarm.trouble = "the Docker daemon does not answer"
    with pytest.raises(JoinRefused, match="does not answer"):
        await world.ask("/join-config")
    done = await world.join_service.remove_node("gpu-1")
    assert "revoked" in done[0]
    assert "docker swarm join-token --rotate worker" in done[2]
    assert "docker node rm --force gpu-1" in done[3]


async def test_a_node_that_is_gone_takes_no_others_token_with_it(world: World) -> None:
    token = world.tokens.make([world.at], time.time())
    await world.join_service.remove_node("gpu-1", gone=True)
    assert (await asyncio.to_thread(world.join_client(token).post, "/join-config", {}))["swarm_token"] == "SWMTKN-1-2"


async def test_each_node_has_a_login_of_its_own_as_good_as_its_certificate(world: World, tmp_path: Path) -> None:
    logins = [(await world.join(f"gpu-{one}", f"n{one}", tmp_path))["registry_login"] for one in (1, 2)]
    (one, first), (other, second) = (login.split(":") for login in logins)
    assert (one, other) == ("node@gpu-1", "node@gpu-2")
    assert first != second
    registry = platform_registry(world.authority, tmp_path)
    assert registry.is_node(one, first) and registry.is_node(other, second)
    assert not registry.is_node(other, first)
    await world.join_service.remove_node("gpu-1")
    assert not registry.is_node(one, first)
    assert registry.is_node(other, second)
    assert registry.is_node("node", "the control plane's own")
    assert not registry.is_node("node", first)
