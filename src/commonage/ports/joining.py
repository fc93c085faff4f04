"""Joining: how nodes are admitted and removed, as the API needs it. Implemented in `commonage.join`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token with which nodes may join until `expires_at` (unix seconds); `url` is the address of the script.

    `command` is what users type on the node: it fetches the script, compares its digest and runs it. It contains no
    secret.
    """

    token: str
    expires_at: float
    url: str
    command: str


@dataclass(frozen=True, slots=True)
class JoinKit:
    """Files that a node needs to join: the script, its SHA-256 (hex), and the packed program (tar.gz)."""

    script: str
    script_sha256: str
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits a node to the Swarm as a worker: the Swarm's own token, and its managers (HOST:PORT)."""

    token: str
    managers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwarmTrust:
    """The Swarm's id and its root certificates (PEM), which verify the certificate of a Swarm node."""

    swarm_id: str
    roots: str


@dataclass(frozen=True, slots=True)
class SwarmMember:
    """A node of the Swarm. `name` is its name at the site, `host_name` the one that Docker reports there now.

    `state` is Swarm's own word: `ready`, `down`, ….
    """

    name: str
    host_name: str
    state: str


class Membership(Protocol):
    """Membership of the Swarm: joining and removal. Every call may raise EngineFailure."""

    async def admission(self) -> Admission: ...

    async def renew_token(self) -> None: ...

    async def trust(self) -> SwarmTrust: ...

    async def members(self, bound: Mapping[str, str]) -> Mapping[str, SwarmMember]:
        """All nodes by id. `bound` are the names that certificates bind to node ids, by id."""

    async def remove(self, node_ids: Collection[str]) -> int:
        """Remove the nodes with these ids, whatever runs there; returns how many existed."""


class Joining(Protocol):
    """The join service of a site, as admins use it.

    That of a site elsewhere is reached over its link. Without the link every method raises Unavailable, except
    `is_admitted` and `remove_node`.
    """

    async def kit(self) -> JoinKit:
        """The same for every node; contains no secret."""

    async def token(self, for_s: int) -> JoinToken:
        """Create a token. Raises InvalidInput; Unavailable when the disk is full."""

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        """Cloud-init user data with which a new machine joins, using this token and these options of the script.

        With `host_name` the node gets this host name, whatever the cloud calls it.
        """

    async def revoke_tokens(self) -> Sequence[str]:
        """Invalidate all join tokens made until now, and the Swarm's token, which their holders received.

        Returns sentences on what was done and what could not be done. Raises Unavailable, with nothing done, when the
        disk is full.
        """

    async def is_admitted(self, node: str) -> bool:
        """True if a valid certificate, or a place in the Swarm, admits this node. Raises EngineFailure."""

    async def remove_node(self, node: str, *, gone: bool = False) -> Sequence[str]:
        """Revoke everything that admits the node, including join tokens, and remove it from the Swarm.

        Returns sentences on what was done and what could not be done. It may join again with a new token. `gone`: the
        node itself no longer exists, so that join tokens stay valid. Unknown nodes are no error. Raises Unavailable,
        with nothing done, when the disk is full.
        """
