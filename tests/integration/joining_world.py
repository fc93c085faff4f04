"""For tests of the door for nodes, and of what admins ask of it: the socket is real, Swarm and agents are fakes."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import subprocess
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.integration.api_world import URL

from commonage.domain.errors import EngineFailure
from commonage.join.client import NAME, JoinClient
from commonage.join.config import statement
from commonage.join.listener import JoinListener
from commonage.join.service import JoinService, Site
from commonage.join.tokens import Tokens
from commonage.link.bundle import make_bundle
from commonage.link.certificate_authority import CertificateAuthority
from commonage.ports.joining import Admission, SwarmMember, SwarmTrust
from commonage.server.clock import SystemClock
from commonage.wire.hub import PORTAL_PATH


class SwarmAuthority:
    """The authority of a Swarm, which certifies its nodes as SwarmKit does."""

    swarm_id = "3072i8ox16deqfbdd2odd23im"

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swarm-ca")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._root = (
            _unsigned(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def trust(self) -> SwarmTrust:
        return SwarmTrust(self.swarm_id, self._root.public_bytes(serialization.Encoding.PEM).decode())

    def node(self, node_id: str, role: str = "swarm-worker") -> tuple[str, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.swarm_id),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
                x509.NameAttribute(NameOID.COMMON_NAME, node_id),
            ]
        )
        made = (
            _unsigned(subject, self._root.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(node_id)]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode(), key


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=90))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


@dataclass
class FakeSwarm:
    """A Swarm with these nodes: host name and state by id. It signs their certificates as a Swarm does."""

    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    trouble: str = ""
    removed: list[str] = field(default_factory=list)
    token: int = 1
    authority: SwarmAuthority = field(default_factory=SwarmAuthority)

    async def admission(self) -> Admission:
        if self.trouble:
            raise EngineFailure(self.trouble)
        return Admission(f"SWMTKN-1-{self.token}", ("10.0.0.1:2377",))

    async def renew_token(self) -> None:
        if self.trouble:
            raise EngineFailure(self.trouble)
        self.token += 1

    async def trust(self) -> SwarmTrust:
        return self.authority.trust

    async def members(self, bound: Mapping[str, str]) -> Mapping[str, SwarmMember]:
        if self.trouble:
            raise EngineFailure(self.trouble)
        return {one: SwarmMember(bound.get(one, name), name, state) for one, (name, state) in self.nodes.items()}

    async def remove(self, node_ids: Collection[str]) -> int:
        if self.trouble:
            raise EngineFailure(self.trouble)
        there = sorted(self.nodes.keys() & set(node_ids))
        self.removed += there
        for one in there:
            del self.nodes[one]
        return len(there)


@dataclass
class World:
    """All of it. `connected` are the nodes whose agents are, as (name, Swarm node id)."""

    join_service: JoinService
    authority: CertificateAuthority
    tokens: Tokens
    swarm: FakeSwarm
    at: str
    shared: Path
    connected: list[tuple[str, str]]
    cut: list[str]

    def join_client(self, token: str | None = None, authority: str | None = None) -> JoinClient:
        made = token or self.tokens.make([self.at], time.time())
        return JoinClient(made, authority or self.authority.certificate)

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self.join_client().post, path, body)

    async def join(self, node: str, node_id: str, folder: Path) -> dict[str, Any]:
        """A node with this name and this Swarm node id asks for its certificate, as `agent.steps.swarm` does."""
        self.swarm.nodes.setdefault(node_id, (node, "ready"))
        certificate, key = self.swarm.authority.node(node_id)
        return await self.ask_for_certificate(node, certificate, key, folder)

    async def ask_for_certificate(
        self, node: str, certificate: str, key: ec.EllipticCurvePrivateKey, folder: Path
    ) -> dict[str, Any]:
        """Show this Swarm certificate, and sign with this key."""
        csr, join_client = await asyncio.to_thread(request_for, node, folder), self.join_client()
        signed = statement(self.authority.certificate, join_client.token, node, csr)
        signature = base64.b64encode(key.sign(signed, ec.ECDSA(hashes.SHA256()))).decode()
        body = {"node": node, "csr": csr, "swarm_certificates": certificate, "signature": signature}
        return await asyncio.to_thread(join_client.post, "/certificate", body)


@asynccontextmanager
async def opened(folder: Path, names: tuple[str, ...] = (NAME,), ahead_s: float = 0) -> AsyncIterator[World]:
    """All of it for a while. Its certificates are called so, and are made at another time than this machine's."""
    authority = await asyncio.to_thread(CertificateAuthority.open, folder / "ca", now=lambda: time.time() + ahead_s)
    tokens, swarm, connected = Tokens(folder / "secret", authority.fingerprint), FakeSwarm(), list[tuple[str, str]]()
    cut: list[str] = []

    async def revoke(node: str, *, gone: bool = False) -> None:
        authority.revoke(node)
        cut.append(node)

    def agent_reports() -> list[Any]:
        return [SimpleNamespace(node=node, node_id=node_id, connected=True) for node, node_id in connected]

    agents: Any = SimpleNamespace(agent_reports=agent_reports, revoke=revoke)
    site = Site("Lab", f"{URL}{PORTAL_PATH}join", ("10.0.0.1:8445",), ("10.0.0.1:8444",), folder / "shared")
    join_service = JoinService(site, authority, tokens, swarm, SystemClock())
    await asyncio.to_thread(join_service.open, make_bundle(), agents)
    listener = JoinListener(join_service)
    pair = authority.serve(names)
    port = await listener.start("127.0.0.1", 0, pair.cert_pem, pair.key_pem)
    try:
        yield World(join_service, authority, tokens, swarm, f"127.0.0.1:{port}", folder / "shared", connected, cut)
    finally:
        await listener.stop()


def request_for(name: str, folder: Path) -> str:
    key = folder / "key"
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    ask = ["openssl", "req", "-new", "-key", str(key), "-subj", f"/CN={name}"]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout
