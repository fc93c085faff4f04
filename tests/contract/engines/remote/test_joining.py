"""Nodes join a site elsewhere: its own join service, with a real listener, answers the control plane over the link."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import SITE, RemoteFakeRig
from tests.integration.joining_world import World, opened

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.reasons.nodes import NodesCannotJoin, UnreachableJoinService
from commonage.join.script import digest_of
from commonage.site_agent.joining import SiteDrains

pytestmark = pytest.mark.anyio
NODE_ID = "2f3k0x8m1q7w5z9c4v6b0n2ml"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path / "world") as made:
        made.join_service._site = replace(
            made.join_service._site, listeners=(made.at,), script_url=f"https://{made.at}/join.sh", serves_script=True
        )
        yield made


@pytest.fixture
async def rig(world: World, tmp_path: Path) -> AsyncIterator[RemoteFakeRig]:
    made = RemoteFakeRig(tmp_path / "rig")
    made.joining = world.join_service
    yield made
    await made.close()


async def test_a_token_of_the_control_plane_admits_a_node_at_the_site(
    rig: RemoteFakeRig, world: World, tmp_path: Path
) -> None:
    made = await (await rig.engine()).joining.token(600)
    assert made.expires_at == rig.clock.now() + 600
    assert made.command.startswith('cd "$(mktemp -d)" && curl -fsSko join.sh https://127.0.0.1:')
    config = await asyncio.to_thread(world.join_client(made.token).post, "/join-config", {})
    assert config["site"] == "Lab"
    assert (await world.join("gpu-1", NODE_ID, tmp_path))["certificate"]
    assert world.authority.holds("gpu-1")


async def test_the_kit_is_that_of_the_site(rig: RemoteFakeRig, world: World) -> None:
    joining = (await rig.engine()).joining
    kit = await joining.kit()
    assert kit == await world.join_service.kit()
    assert world.authority.certificate.strip() in kit.script
    assert kit.script_sha256 in (await joining.token(600)).command
    assert "--scratch=off" in await joining.template("cmj1.a.b", ["--scratch=off"])


async def test_the_script_is_served_without_a_token(world: World) -> None:
    client = world.join_client()
    script = (await asyncio.to_thread(client.get, "/join.sh")).decode()
    assert digest_of(script) == (await world.join_service.kit()).script_sha256
    assert client.token not in script


async def test_a_removed_node_loses_its_access_to_the_site(rig: RemoteFakeRig, world: World, tmp_path: Path) -> None:
    joining = (await rig.engine()).joining
    await world.join("gpu-1", NODE_ID, tmp_path)
    token = world.tokens.make([world.at], time.time())
    assert await joining.is_admitted("gpu-1")
    done = await joining.remove_node("gpu-1")
    assert any("certificate is revoked" in one for one in done)
    assert not await joining.is_admitted("gpu-1")
    assert world.swarm.removed == [NODE_ID]
    assert "join tokens are revoked" in " ".join(await joining.revoke_tokens())
    with pytest.raises(Exception, match="revoked"):
        world.tokens.check(token, time.time())


async def test_an_unreachable_site_refuses_with_its_reason(rig: RemoteFakeRig) -> None:
    joining = (await rig.engine()).joining
    await rig.cut()
    for call in (joining.token(600), joining.kit(), joining.revoke_tokens(), joining.template("x", ())):
        with pytest.raises(Unavailable) as refused:
            await call
        assert isinstance(refused.value.reason, UnreachableJoinService)
        assert refused.value.reason.site == SITE
    [told] = await joining.remove_node("gpu-1")
    assert "is not revoked, because the site is unreachable" in told
    assert not await joining.is_admitted("gpu-1")


async def test_a_site_without_a_join_service_says_what_it_lacks(tmp_path: Path) -> None:
    rig = RemoteFakeRig(tmp_path)
    try:
        joining = (await rig.engine()).joining
        with pytest.raises(Conflict) as refused:
            await joining.token(600)
        assert refused.value.reason == NodesCannotJoin(site=SITE)
        assert list(await joining.remove_node("gpu-1")) == []
        assert not await joining.is_admitted("gpu-1")
        await rig.cut()
        assert list(await joining.remove_node("gpu-1")) == [], "there was never anything to revoke"
    finally:
        await rig.close()


async def test_a_node_that_leaves_is_reported_and_then_loses_its_access(
    rig: RemoteFakeRig, world: World, tmp_path: Path
) -> None:
    engine = await rig.engine()
    await world.join("here", NODE_ID, tmp_path)
    assert rig.agent is not None
    drains = SiteDrains(world.join_service, lambda: rig.gateway.connection, rig.agent.refresh)
    [node] = await engine.nodes()
    await drains.left(node.name)
    assert rig.left == [(SITE, node.name)]
    assert await engine.nodes() == (), "until the next report, which lacks it"
    await drains.finish_leave("here")
    assert not world.authority.holds("here")
    await rig.cut()
    with pytest.raises(Exception, match="not connected to the control plane"):
        await drains.left(node.name)
