"""Data that node and control plane exchange in joining: the join config, and the statement that identifies a node.

Both sides build the same statement: the node signs it with its own key in the Swarm, the control plane verifies it
(`node_identity`). Standard library only, because this travels to the node.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MARK_FILE = ".commonage-site"
"""File in the shared folder by which a node recognises the site's folder."""


class JoinConfigError(ValueError):
    """The join config is not valid; the message says why."""


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """Everything that a node needs to know of the site it joins, including secrets.

    `authority` is the site's own certificate (PEM); `agents` are HOST:PORT that its agent dials; `managers` are
    HOST:PORT of the Swarm's managers, `swarm_token` lets it in as a worker. `daemon` are required values in Docker's
    settings, `agent` the site's values in its agents' settings (`commonage.agent.config`). `registry` is HOST:PORT or
    empty. `shared_dir` is the folder that all nodes see, `mark` the content of its MARK_FILE. `images` are pulled while
    joining. `now` is the control plane's clock (unix seconds). `registry_authority` (PEM) is not empty if the registry
    is that of a control plane elsewhere: then nodes have no login there.
    """

    site: str
    authority: str
    agents: tuple[str, ...]
    managers: tuple[str, ...]
    swarm_token: str
    shared_dir: str
    mark: str
    now: float
    registry: str = ""
    images: tuple[str, ...] = ()
    daemon: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    registry_authority: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read the JSON object. Fields that this version does not know are ignored. Raises JoinConfigError."""
        if not isinstance(content, dict):
            raise JoinConfigError("the join config of the site is not a JSON object")
        known = {one.name: one for one in dataclasses.fields(cls)}
        kept = {name: value for name, value in content.items() if name in known}
        missing = [
            name
            for name, one in known.items()
            if name not in kept and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise JoinConfigError(f"the join config of the site lacks {', '.join(missing)}")
        for name in ("agents", "managers", "images"):
            if name in kept:
                kept[name] = _texts(name, kept[name])
        for name in ("site", "authority", "swarm_token", "shared_dir", "mark", "registry", "registry_authority"):
            if not isinstance(kept.get(name, ""), str):
                raise JoinConfigError(f"{name} in the join config is not a text: {kept[name]!r}")
        if not all(isinstance(kept.get(name, {}), dict) for name in ("daemon", "agent")):
            raise JoinConfigError("daemon and agent in the join config must be objects")
        if not isinstance(kept["now"], int | float):
            raise JoinConfigError(f"now in the join config is not a number: {kept['now']!r}")
        return cls(**kept)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise JoinConfigError(f"{name} in the join config is not a list of texts: {value!r}")
    return tuple(value)


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
