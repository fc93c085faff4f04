"""The door for machines on a real socket, and what admins ask of it by the API; the Swarm and the agents are fakes."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tests.integration.api_world import URL, WallClock, serving

from commonage.agent.contained import authority_of
from commonage.agent.steps_host import Host
from commonage.api.app import create_app
from commonage.api.auth import Auth
from commonage.domain.errors import EngineFailure, Forbidden
from commonage.joining.door import MachinesDoor
from commonage.joining.fetch import NAME, Door, Refusal, unpack
from commonage.joining.office import Office, Site
from commonage.joining.terms import MARK_FILE, Terms
from commonage.joining.tokens import Tokens
from commonage.link.bundle import make_bundle
from commonage.link.ca import Authority
from commonage.ports.joining import Admission
from commonage.server.registry import PlatformRegistry, RegistryPlan
from commonage.wire.hub import API_PATH, PORTAL_PATH

pytestmark = pytest.mark.anyio


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
async def opened(folder: Path, names: tuple[str, ...] = (NAME,)) -> AsyncIterator[World]:
    authority = await asyncio.to_thread(Authority.open, folder / "ca")
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


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as made:
        yield made


def platform_registry(authority: Authority, folder: Path) -> PlatformRegistry:
    """The registry's door-keeper; the registry itself does not run."""
    plan = RegistryPlan(folder, folder, "127.0.0.1", 5000, "localhost", "http://localhost/token", 30)
    return PlatformRegistry(plan, authority, "the control plane's own")


def request_for(name: str, folder: Path) -> str:
    """A certificate request as a machine makes it."""
    key = folder / "key"
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    ask = ["openssl", "req", "-new", "-key", str(key), "-subj", f"/CN={name}"]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout


async def test_a_machine_with_a_token_is_told_the_terms(world: World) -> None:
    terms = Terms.from_json(await world.ask("/terms"))
    assert (terms.site, terms.managers, terms.swarm_token) == ("Lab", ("10.0.0.1:2377",), "SWMTKN-1-1")
    assert terms.authority == world.authority.certificate
    assert abs(terms.now - time.time()) < 60
    assert (world.shared / MARK_FILE).read_text().strip() == terms.mark


async def test_the_token_alone_tells_whose_certificate_to_believe(world: World, tmp_path: Path) -> None:
    token = world.tokens.make([world.at], time.time())
    assert await asyncio.to_thread(authority_of, Host(), token) == world.authority.certificate
    other = Tokens(tmp_path / "other", "0" * 64).make([world.at], time.time())
    with pytest.raises(Refusal, match="does not show the certificate"):
        await asyncio.to_thread(authority_of, Host(), other)
    away = world.tokens.make(["127.0.0.1:1"], time.time())
    with pytest.raises(Refusal, match=r"127\.0\.0\.1:1 cannot be reached"):
        await asyncio.to_thread(authority_of, Host(), away)


async def test_the_bundle_holds_the_program_and_nothing_leads_out(world: World, tmp_path: Path) -> None:
    packed = await asyncio.to_thread(world.door().get, "/bundle")
    (tmp_path / "bundle").write_bytes(packed)
    unpack(str(tmp_path / "bundle"), str(tmp_path / "out"))
    assert (tmp_path / "out/commonage/agent/join.py").is_file()
    evil = BytesIO()
    with tarfile.open(fileobj=evil, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), BytesIO())
    (tmp_path / "evil.tar.gz").write_bytes(evil.getvalue())
    with pytest.raises(Refusal):
        unpack(str(tmp_path / "evil.tar.gz"), str(tmp_path / "out"))
    assert not (tmp_path / "evil").exists()


async def test_who_is_not_vouched_for_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with opened(tmp_path / "a") as ours, opened(tmp_path / "b") as others:
        token = ours.tokens.make([others.at], time.time())
        with pytest.raises(Refusal, match="not vouched for by the site's authority"):
            await asyncio.to_thread(ours.door(token).get, "/bundle")


async def test_a_certificate_of_ours_for_something_else_does_not_do(tmp_path: Path) -> None:
    async with opened(tmp_path, ("registry.site",)) as world:
        with pytest.raises(Refusal, match="not vouched for"):
            await asyncio.to_thread(world.door().get, "/bundle")


async def test_nobody_at_the_address_is_said_with_what_to_do(world: World) -> None:
    token = world.tokens.make(["127.0.0.1:1"], time.time())
    with pytest.raises(Refusal, match=r"127\.0\.0\.1:1 cannot be reached: .* firewall"):
        await asyncio.to_thread(world.door(token).get, "/bundle")
    both = world.tokens.make(["127.0.0.1:1", world.at], time.time())
    assert await asyncio.to_thread(world.door(both).get, "/bundle")


async def test_without_a_good_token_there_is_nothing(world: World) -> None:
    token = world.tokens.make([world.at], time.time())
    world.tokens.forget()
    for path in ("/terms", "/certificate", "/seen"):
        with pytest.raises(Refusal, match="revoked"):
            await asyncio.to_thread(world.door(token).post, path, {})
    # TLS is looked at by the others; here it is the absence of a token that matters.
    async with httpx2.AsyncClient(verify=False) as client:
        for header in ({}, {"Authorization": "Bearer"}, {"Authorization": "Basic eA=="}):
            assert (await client.get(f"https://{world.at}/bundle", headers=header)).status_code == 403


async def test_what_cannot_be_read_is_refused_in_words(world: World) -> None:
    for path, body, why in (
        ("/certificate", {}, "node must be a text"),
        ("/certificate", {"node": "gpu-1", "csr": "x"}, "no certificate request"),
        ("/certificate", {"node": " ", "csr": "x"}, "no name of a machine"),
        ("/seen", {"node": "gpu-1", "serial": "zz"}, "no serial number"),
        ("/nowhere", {}, "Not Found"),
    ):
        with pytest.raises(Refusal, match=why):
            await world.ask(path, **body)


async def test_a_machine_is_vouched_for_and_can_be_put_out(world: World, tmp_path: Path) -> None:
    csr = await asyncio.to_thread(request_for, "gpu-1", tmp_path)
    signed = (await world.ask("/certificate", node="gpu-1", csr=csr))["certificate"]
    assert world.swarm.removed == [("gpu-1", True)], "one of its name that is down is in nobody's way"
    (tmp_path / "crt").write_text(signed)
    shown = ["openssl", "x509", "-in", str(tmp_path / "crt"), "-noout", "-serial"]
    ran = await asyncio.to_thread(subprocess.run, shown, check=True, capture_output=True, text=True)
    serial = ran.stdout.strip().partition("=")[2]
    assert (await world.ask("/seen", node="gpu-1", serial=serial))["revoked"] is False
    world.swarm.nodes = {"abc": "ready"}
    token = world.tokens.make([world.at], time.time())
    said = await world.office.expel("gpu-1")
    assert len(said) == 4
    with pytest.raises(Refusal, match="revoked"):
        await asyncio.to_thread(world.door(token).post, "/terms", {})
    assert world.cut == ["gpu-1"], "its link ends at once"
    assert (await world.ask("/terms"))["swarm_token"] == "SWMTKN-1-2", "what it knows of the Swarm is worth nothing"
    seen = await world.ask("/seen", node="gpu-1", serial=serial)
    assert seen == {"revoked": True, "connected": False, "swarm": {"abc": "ready"}}


async def test_the_name_of_a_machine_that_is_here_is_taken(world: World, tmp_path: Path) -> None:
    world.connected.append("gpu-1")
    csr = await asyncio.to_thread(request_for, "gpu-1", tmp_path)
    with pytest.raises(Refusal, match="another host name, or take that one out first with `commonage node rm gpu-1`"):
        await world.ask("/certificate", node="gpu-1", csr=csr)


async def test_a_swarm_in_trouble_does_not_keep_a_machine_in(world: World) -> None:
    world.swarm.trouble = "the Docker daemon does not answer"
    with pytest.raises(Refusal, match="does not answer"):
        await world.ask("/terms")
    done = await world.office.expel("gpu-1")
    assert "revoked" in done[0]
    assert "docker swarm join-token --rotate worker" in done[2]
    assert "docker node rm --force gpu-1" in done[3]


async def test_a_machine_that_is_gone_takes_no_others_token_with_it(world: World) -> None:
    token = world.tokens.make([world.at], time.time())
    await world.office.expel("gpu-1", gone=True)
    assert (await asyncio.to_thread(world.door(token).post, "/terms", {}))["swarm_token"] == "SWMTKN-1-2"


async def test_each_machine_has_a_login_of_its_own_as_good_as_its_certificate(world: World, tmp_path: Path) -> None:
    csr = await asyncio.to_thread(request_for, "gpu-1", tmp_path)
    logins = [(await world.ask("/certificate", node=node, csr=csr))["registry_login"] for node in ("gpu-1", "gpu-2")]
    (one, first), (other, second) = (login.split(":") for login in logins)
    assert (one, other) == ("machine@gpu-1", "machine@gpu-2")
    assert first != second
    registry = platform_registry(world.authority, tmp_path)
    assert registry.is_machine(one, first) and registry.is_machine(other, second)
    assert not registry.is_machine(other, first)
    await world.office.expel("gpu-1")
    assert not registry.is_machine(one, first)
    assert registry.is_machine(other, second)
    assert registry.is_machine("machine", "the control plane's own")
    assert not registry.is_machine("machine", first)


# --- for admins -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def api(folder: Path, world: World | None) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(folder, run=False) as made:
        office = None if world is None else world.office
        app = create_app(made.control, Auth(made.identity), machines=office)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
            yield client


ADMIN = {"Authorization": "Bearer admin:root"}
CALLS = (
    ("POST", "/join-tokens"),
    ("DELETE", "/join-tokens"),
    ("GET", "/join-kit"),
    ("POST", "/nodes/here/gpu-1/expel"),
)


async def test_admins_make_and_revoke_tokens(world: World, tmp_path: Path) -> None:
    async with api(tmp_path, world) as client:
        ask = {"for_s": 600, "cloud_init": True, "options": ["--scratch=off"]}
        made = await client.post(f"{API_PATH}/join-tokens", headers=ADMIN, json=ask)
        assert made.status_code == 201
        said = made.json()
        assert 500 < said["expires_at"] - time.time() <= 600
        assert said["token"] in said["user_data"] and "--scratch=off" in said["user_data"]
        script = await client.get(f"{PORTAL_PATH}join")
        assert script.status_code == 200
        kit = (await client.get(f"{API_PATH}/join-kit", headers=ADMIN)).json()
        assert (kit["script"], kit["script_sha256"]) == (script.text, said["script_sha256"])
        world.tokens.check(said["token"], time.time())
        assert (await client.delete(f"{API_PATH}/join-tokens", headers=ADMIN)).status_code == 200
        with pytest.raises(Forbidden, match="revoked"):
            world.tokens.check(said["token"], time.time())
        expelled = await client.post(f"{API_PATH}/nodes/here/gpu-1/expel", headers=ADMIN)
        assert "revoked" in expelled.json()["done"][0]


class FullDisk:
    """Files of these names find no room any more, as on a real disk: none of their bytes arrive."""

    def __init__(self, patch: pytest.MonkeyPatch, *names: str) -> None:
        self._names, self._really = names, os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        if any(name in os.readlink(f"/proc/self/fd/{descriptor}") for name in self._names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._really(descriptor)


@pytest.mark.parametrize("full", ["issued", "secret"])
async def test_on_a_full_disk_a_machine_is_expelled_whole_or_not_at_all(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    csr = await asyncio.to_thread(request_for, "gpu-1", tmp_path)
    await world.ask("/certificate", node="gpu-1", csr=csr)
    world.swarm.removed.clear()
    token = world.tokens.make([world.at], time.time())
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "full" not in path.parts)
    async with api(tmp_path / "full", world) as client:
        with monkeypatch.context() as patch:
            FullDisk(patch, full)
            answer = await client.post(f"{API_PATH}/nodes/here/gpu-1/expel", headers=ADMIN)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.json()["retryable"] is True
            assert re.search(r"the disk of \S+ is full: .* free some space, then ask again", answer.json()["detail"])
        world.tokens.check(token, time.time())
        assert (world.cut, world.swarm.removed, world.swarm.token) == ([], [], 1)
        assert not world.authority.revoked()
        assert before == sorted(path for path in tmp_path.rglob("*") if path.is_file() and "full" not in path.parts)
        again = await client.post(f"{API_PATH}/nodes/here/gpu-1/expel", headers=ADMIN)
        assert (again.status_code, len(again.json()["done"])) == (200, 4)
    assert len(world.authority.revoked()) == 1
    with pytest.raises(Forbidden, match="revoked"):
        world.tokens.check(token, time.time())


@pytest.mark.parametrize("call", [("POST", "/join-tokens"), ("DELETE", "/join-tokens")], ids=" ".join)
async def test_on_a_full_disk_join_tokens_are_as_they_were(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str]
) -> None:
    async with api(tmp_path / "full", world) as client:
        with monkeypatch.context() as patch:
            FullDisk(patch, "secret")
            answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "the secret of the join tokens cannot be kept" in answer.json()["detail"]
        assert (world.swarm.token, list(tmp_path.glob(".secret*"))) == (1, [])
        again = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert again.status_code in (200, 201)


async def test_on_a_full_disk_a_machine_that_joins_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csr = await asyncio.to_thread(request_for, "gpu-1", tmp_path)
    door = world.door()
    with monkeypatch.context() as patch:
        FullDisk(patch, "issued")
        with pytest.raises(Refusal, match="is full: which machine has which certificate cannot be kept"):
            await asyncio.to_thread(door.post, "/certificate", {"node": "gpu-1", "csr": csr})


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
async def test_nobody_else_does(world: World, tmp_path: Path, call: tuple[str, str]) -> None:
    async with api(tmp_path, world) as client:
        answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers={"Authorization": "Bearer ann"})
        assert (answer.status_code, answer.json()["code"]) == (403, "scope-missing")


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
async def test_where_no_machine_can_join_that_is_said(tmp_path: Path, call: tuple[str, str]) -> None:
    async with api(tmp_path, None) as client:
        answer = await client.request(call[0], f"{API_PATH}{call[1]}", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "site_address" in answer.json()["detail"]
        assert (await client.get(f"{PORTAL_PATH}join")).status_code == 404
