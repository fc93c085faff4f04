"""How machines are let in and put out again, as the API needs it. Implemented in `commonage.joining`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token with which machines may join until `expires_at` (unix seconds); `url` is where they get the script.

    `command` is what people type there: it fetches the script, compares its digest and runs it. No secret is in it.
    """

    token: str
    expires_at: float
    url: str
    command: str


@dataclass(frozen=True, slots=True)
class JoinKit:
    """What a machine begins with: the script, its SHA-256 (hex), and the packed program (tar.gz)."""

    script: str
    script_sha256: str
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Admission:
    """What lets a machine into the Swarm as a worker: the Swarm's own token, and its managers (HOST:PORT)."""

    token: str
    managers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwarmTrust:
    """The Swarm's id and its root certificates (PEM), by which a certificate of a Swarm node is verified."""

    swarm_id: str
    roots: str


@dataclass(frozen=True, slots=True)
class SwarmMember:
    """A node of the Swarm. `name` is the name that the site lists it by, `host_name` what Docker there reports now.

    `state` is Swarm's own word: `ready`, `down`, ….
    """

    name: str
    host_name: str
    state: str


class Membership(Protocol):
    """The Swarm, as far as joining it and being put out of it go. Every call may raise EngineFailure."""

    async def admission(self) -> Admission:
        """What a new worker needs."""
        ...

    async def renew_token(self) -> None:
        """Have another token than until now let workers in."""
        ...

    async def trust(self) -> SwarmTrust:
        """By what certificates of its nodes are verified."""
        ...

    async def members(self, bound: Mapping[str, str]) -> Mapping[str, SwarmMember]:
        """All nodes by id. `bound` are the names that certificates bind to node ids, by id."""
        ...

    async def remove(self, node_ids: Collection[str]) -> int:
        """Put out the nodes with these ids, whatever runs there; says how many there were."""
        ...


class Joining(Protocol):
    """The site's door for machines, as admins use it."""

    def kit(self) -> JoinKit:
        """The same for every machine; no secret is in it."""
        ...

    async def token(self, for_s: int) -> JoinToken:
        """A new one. Raises InvalidInput; Unavailable when the disk is full."""
        ...

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        """Cloud-init user data that has a new machine join with this token and these options of the script.

        With `host_name` it is called so, whatever the cloud calls it.
        """
        ...

    async def forget_tokens(self) -> Sequence[str]:
        """No token that was made until now is good any more, nor is what was told to who had one: the Swarm's.

        Says what was done, and what could not be. Raises Unavailable, with nothing done, when the disk is full.
        """
        ...

    async def lets_in(self, node: str) -> bool:
        """Whether a certificate that holds, or a place in the Swarm, lets this machine in. Raises EngineFailure."""
        ...

    async def expel(self, node: str, *, gone: bool = False) -> Sequence[str]:
        """Take back all that lets the machine in, join tokens included, and its place in the Swarm.

        Says what was done, and what could not be. It may join again with a new token. `gone`: the machine itself is no
        more, so that join tokens stay good. Unknown machines are no error. Raises Unavailable, with nothing done, when
        the disk is full.
        """
        ...
