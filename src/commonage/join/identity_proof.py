"""The statement that a node signs when it joins, to prove which Swarm node it is.

Both sides build the same statement: the node signs it with its own key in the Swarm, the control plane verifies it
(`node_identity`). It uses the standard library only, because it travels to the node.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """`certificates`: the node's Swarm certificate and its intermediates (PEM). `signature`: base64, ECDSA, SHA-256."""

    certificates: str
    signature: str


def statement(authority: str, token: str, node: str, csr: str) -> bytes:
    """The bytes to sign: this key (`csr`, PEM) is for the node of this name, at the site of this authority (PEM).

    The join token dates the statement: it is not accepted with another token.
    """
    content = {
        "purpose": "commonage-node-identity-1",
        "authority": _digest(authority),
        "token": _digest(token),
        "node": node,
        "csr": _digest(csr),
    }
    return json.dumps(content, sort_keys=True).encode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()
