"""A node proves which Swarm node it is, with the files that Docker keeps of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from commonage.agent.steps.host import Host, StepFailed
from commonage.agent.steps.swarm import SwarmNode, prove

KEY = ec.generate_private_key(ec.SECP256R1())


def node_in(folder: Path, key: str) -> SwarmNode:
    (folder / "swarm-node.crt").write_text("its certificate")
    (folder / "swarm-node.key").write_text(key)
    return SwarmNode("n1", folder)


def pem(encryption: serialization.KeySerializationEncryption) -> str:
    return KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


PLAIN = pem(serialization.NoEncryption())
LINES = PLAIN.splitlines()
WITH_HEADERS = "\n".join([LINES[0], "kek-version: 0", "raft-dek: EiA8811TI/+Bn4ft==", "", *LINES[1:], ""])


@pytest.mark.parametrize("key", [PLAIN, WITH_HEADERS], ids=["plain", "with the headers that Swarm writes"])
def test_statement_is_signed_with_the_nodes_swarm_key(tmp_path: Path, key: str) -> None:
    proof = prove(Host(), node_in(tmp_path, key), b"what is said")
    assert proof.certificates == "its certificate"
    KEY.public_key().verify(base64.b64decode(proof.signature), b"what is said", ec.ECDSA(hashes.SHA256()))


def test_locked_key_is_refused_with_advice(tmp_path: Path) -> None:
    node = node_in(tmp_path, pem(serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(StepFailed, match="docker swarm update --autolock=false"):
        prove(Host(), node, b"what is said")


def test_missing_or_damaged_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"swarm-node\.crt does not exist, .* COMMONAGE_DOCKER_ROOT"):
        prove(Host(), SwarmNode("n1", tmp_path), b"what is said")
    with pytest.raises(StepFailed, match=r"openssl cannot sign with .*swarm-node\.key"):
        prove(Host(), node_in(tmp_path, "no key"), b"what is said")
