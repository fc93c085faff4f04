"""The control plane's side of joining: who is let in, what they are told, and who is put out again.

Knows the site's authority, its Swarm and its agents by small protocols; `door` puts this on the network, the API is its
counter for admins. The program that machines are given comes packed from the server's wiring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from commonage.domain.errors import CommonageError, Conflict, InvalidInput
from commonage.joining.script import cloud_init, digest_of, join_script
from commonage.joining.terms import MARK_FILE, Terms
from commonage.joining.tokens import Tokens
from commonage.ports.agents import Agents
from commonage.ports.clock import Clock
from commonage.ports.joining import JoinKit, JoinToken, Membership

log = logging.getLogger(__name__)


class Signer(Protocol):
    """The site's authority: it vouches for machines."""

    @property
    def certificate(self) -> str:
        """Its own certificate, PEM."""
        ...

    def sign(self, csr_pem: str, node: str) -> str:
        """A certificate for this machine, PEM. Raises InvalidInput."""
        ...

    def revoke(self, node: str) -> None:
        """Take back all that this machine was given."""
        ...

    def revoked(self) -> Collection[int]:
        """The serial numbers of certificates that were taken back."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """What machines are told besides the Swarm's token. `script_url` is where people fetch the script.

    `doors` and `agents` are HOST:PORT, as other machines reach them; `shared_dir` is the folder that all of them see;
    `images` are to be had at once; `daemon` and `agent` are what must stand in Docker's settings and the agents'.
    """

    name: str
    script_url: str
    doors: tuple[str, ...]
    agents: tuple[str, ...]
    shared_dir: Path
    registry: str = ""
    registry_login: str = field(default="", repr=False)
    images: tuple[str, ...] = ()
    daemon: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)


class Office:
    """The port `ports.joining.Joining`, and what the door asks."""

    def __init__(self, site: Site, signer: Signer, tokens: Tokens, swarm: Membership, clock: Clock) -> None:
        self._site, self._signer, self._tokens = site, signer, tokens
        self._swarm, self._clock = swarm, clock
        self._agents: Agents | None = None
        self._kit = JoinKit("", "", b"")
        self._mark = ""

    def open(self, bundle: bytes, agents: Agents | None = None) -> None:
        """Begin, with the packed program for machines, and the agents that are heard. Writes the shared folder's mark.

        Blocks a moment. Raises CommonageError if the folder cannot be written.
        """
        script = join_script(self._site.name, self._signer.certificate)
        self._kit, self._agents = JoinKit(script, digest_of(script), bundle), agents
        self._mark = _mark(self._site.shared_dir, digest_of(self._signer.certificate))

    # --- for admins -------------------------------------------------------------------------------------------------

    def kit(self) -> JoinKit:
        """The same for every machine; no secret is in it."""
        return self._kit

    async def token(self, for_s: int) -> JoinToken:
        """A new one. Raises InvalidInput."""
        now = self._clock.now()
        made = await asyncio.to_thread(self._tokens.make, self._site.doors, now, for_s)
        return JoinToken(made, now + for_s, self._site.script_url)

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        """Cloud-init user data with this token and these options of the script."""
        return cloud_init(self._kit.script, token, options, host_name)

    async def forget_tokens(self) -> None:
        """No token that was made until now is good any more."""
        await asyncio.to_thread(self._tokens.forget)
        log.info("all join tokens were revoked")

    async def expel(self, node: str) -> Sequence[str]:
        """Take back the machine's certificates and its place in the Swarm; a sentence for each."""
        await asyncio.to_thread(self._signer.revoke, node)
        said = [f"{node}'s certificate is revoked: its agent is not let in any more"]
        try:
            gone = await self._swarm.remove(node)
        except CommonageError as error:
            return [
                *said,
                f"it could not be put out of the Swarm: {error.message}; `docker node rm --force {node}` does",
            ]
        log.info("machine expelled", extra={"node": node, "was_in_swarm": gone})
        return [*said, f"{node} is put out of the Swarm" if gone else f"the Swarm has no {node}"]

    # --- for machines -----------------------------------------------------------------------------------------------

    async def admit(self, token: str) -> None:
        """Raises Forbidden unless this token lets a machine in now."""
        await asyncio.to_thread(self._tokens.check, token, self._clock.now())

    async def terms(self) -> Terms:
        """All that a machine needs to know. Raises EngineFailure when the Swarm does not answer."""
        admission = await self._swarm.admission()
        site = self._site
        return Terms(
            site=site.name,
            authority=self._signer.certificate,
            agents=site.agents,
            managers=admission.managers,
            swarm_token=admission.token,
            shared_dir=str(site.shared_dir),
            mark=self._mark,
            now=self._clock.now(),
            registry=site.registry,
            registry_login=site.registry_login,
            images=site.images,
            daemon=site.daemon,
            agent=site.agent,
        )

    async def certificate(self, node: str, csr_pem: str) -> str:
        """A certificate (PEM) for this machine. Raises InvalidInput; Conflict while one of its name is here."""
        if not node.strip() or node != node.strip():
            raise InvalidInput(f"{node!r} is no name of a machine", field="node")
        if self.connected(node):
            raise Conflict(
                f"a machine called {node} is here and its agent is connected; give this one another host name, or take "
                f"that one out first with `commonage node rm {node}`"
            )
        signed = await asyncio.to_thread(self._signer.sign, csr_pem, node)
        # A machine that vanished has its replacement now, and would stand beside it for ever.
        await self._swarm.remove(node, down_only=True)
        log.info("machine admitted", extra={"node": node})
        return signed

    def connected(self, node: str) -> bool:
        """Whether this machine's agent is connected now."""
        return self._agents is not None and any(one.node == node and one.connected for one in self._agents.heard())

    async def seen(self, node: str, serial: str = "") -> dict[str, Any]:
        """What the control plane sees of a machine: `connected`; `swarm`, its states there by id; and `revoked`.

        The last of the certificate of this serial number (hex), if one is given. Raises InvalidInput, EngineFailure.
        """
        try:
            number = int(serial or "0", 16)
        except ValueError:
            raise InvalidInput(f"{serial!r} is no serial number in hex", field="serial") from None
        revoked = number in await asyncio.to_thread(self._signer.revoked)
        members = await self._swarm.members(node)
        return {"connected": self.connected(node), "swarm": dict(members), "revoked": revoked}


def _mark(folder: Path, mark: str) -> str:
    """Have the mark in the shared folder, by which a machine knows it. Raises CommonageError."""
    file = folder / MARK_FILE
    try:
        if not file.exists() or file.read_text(encoding="utf-8").strip() != mark:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(mark + "\n", encoding="utf-8")
    except OSError as error:
        raise CommonageError(f"the shared folder {folder} cannot be written: {error.strerror or error}") from error
    return mark
