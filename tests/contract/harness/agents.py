"""Agents of the tests' own: an authority, what joining would have written, and the agent as a program of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.contract.harness.swarm import enter

from commonage.agent.config import AgentConfig, config_text
from commonage.link.certificate_authority import CertificateAuthority


def make_config(
    folder: Path, authority: CertificateAuthority, node: str, port: int, *, node_id: str = "", **fields: Any
) -> AgentConfig:
    """Write the files that joining writes into `folder`: key, request, certificate, and the authority's certificate.

    The certificate is bound to this Swarm node; without one, where there is no Swarm, to one called as the node.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "agent.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    csr = request.public_bytes(serialization.Encoding.PEM).decode()
    (folder / "agent.csr").write_text(csr)
    (folder / "agent.crt").write_text(authority.sign(csr, node, node_id or node))
    (folder / "ca.crt").write_text(authority.certificate)
    about: dict[str, Any] = {
        "node": node,
        "control": (f"127.0.0.1:{port}",),
        "certificate": str(folder / "agent.crt"),
        "key": str(folder / "agent.key"),
        "request": str(folder / "agent.csr"),
        "authority": str(folder / "ca.crt"),
        "state": str(folder / "state"),
        "mounts": str(folder / "mounts"),
        "gpus": "simulated:2x24GiB",
        "docker": f"unix://{folder}/no-docker.sock",
        "firewall": False,
    }
    return AgentConfig(**{**about, **fields})


def without_node_id(authority: Path, pem: str) -> str:
    """The same certificate (PEM) as a release signed it whose certificates named no Swarm node."""
    key: Any = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    ours = x509.load_pem_x509_certificate(pem.encode())
    built = x509.CertificateBuilder(
        issuer_name=ours.issuer,
        subject_name=ours.subject,
        public_key=ours.public_key(),
        serial_number=ours.serial_number,
        not_valid_before=ours.not_valid_before_utc,
        not_valid_after=ours.not_valid_after_utc,
        extensions=[one for one in ours.extensions if not isinstance(one.value, x509.SubjectAlternativeName)],
    )
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def listening_in(space: str, address: str, port: int = 0) -> socket.socket:
    """A socket that listens at this address of a network namespace, on this port or a free one, for this process."""

    def listen() -> socket.socket:  # in a thread of its own: the namespace is the thread's
        enter(space)
        return socket.create_server((address, port))

    with ThreadPoolExecutor(1) as once:
        return once.submit(listen).result()


class AgentProgram:
    """The agent as it runs on a node: a process, which `close` ends.

    `before`: words before the command, for a network namespace. `source`: the folder of a bundle, for `python`.
    """

    def __init__(
        self,
        folder: Path,
        config: AgentConfig,
        *,
        before: Sequence[str] = (),
        python: Sequence[str] = (sys.executable,),
        source: Path | None = None,
    ) -> None:
        self.log = folder / "agent.log"
        file = folder / "agent.toml"
        file.write_text(config_text(config))
        environment = {**os.environ, **({"PYTHONPATH": str(source)} if source else {})}
        command = [*before, *python, "-m", "commonage.agent", "run", "--verbose", "--config", str(file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def close(self) -> int:
        self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
