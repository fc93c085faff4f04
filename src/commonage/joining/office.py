"""The control plane's side of joining: who is let in, what they are told, and who is put out again.

Knows the site's authority, its Swarm and its agents by small protocols; `door` puts this on the network, the API is its
counter for admins. The program that machines are given comes packed from the server's wiring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from commonage.domain.errors import CommonageError, Conflict, InvalidInput
from commonage.files.beneath import Beneath
from commonage.joining.identity_proof import IdentityProof, statement
from commonage.joining.node_identity import verified_node_id
from commonage.joining.script import cloud_init, digest_of, join_command, join_script
from commonage.joining.terms import MARK_FILE, Terms
from commonage.joining.tokens import Tokens
from commonage.ports.agents import Heard
from commonage.ports.clock import Clock
from commonage.ports.joining import JoinKit, JoinToken, Membership, SwarmMember

log = logging.getLogger(__name__)
_DOWN = "down"


class Admitted(Protocol):
    """What a machine is given: a certificate (PEM), and a secret of its own for the registry."""

    @property
    def certificate(self) -> str:
        """With which its agent shows which machine it is."""
        ...

    @property
    def account(self) -> str:
        """As good as the certificate is."""
        ...


class Links(Protocol):
    """The links to the machines' agents."""

    def heard(self) -> Sequence[Heard]:
        """As `ports.agents.Agents`."""
        ...

    async def revoke(self, node: str, *, gone: bool = False) -> None:
        """Take back all that this machine was given, end its link at once, and have it at fault, unless it is gone."""
        ...


class Signer(Protocol):
    """The site's authority: it vouches for machines."""

    @property
    def certificate(self) -> str:
        """Its own certificate, PEM."""
        ...

    def admit(self, csr_pem: str, node: str, node_id: str) -> Admitted:
        """What this machine is given, which binds its name to its Swarm node id. What either was given before is taken
        back. Raises InvalidInput."""
        ...

    def bindings(self) -> Mapping[str, str]:
        """The names that valid certificates bind to Swarm node ids, by id."""
        ...

    def node_ids(self, node: str) -> Collection[str]:
        """The Swarm node ids that this name is, or was, bound to, except those that another name is bound to now."""
        ...

    def revoke(self, node: str) -> None:
        """Take back all that this machine was given."""
        ...

    def revoked(self) -> Collection[int]:
        """The serial numbers of certificates that were taken back."""
        ...

    def holds(self, node: str) -> bool:
        """Whether this machine has a certificate that was neither taken back nor has expired."""
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
    images: tuple[str, ...] = ()
    daemon: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)


class Office:
    """The port `ports.joining.Joining`, and what the door asks."""

    def __init__(self, site: Site, signer: Signer, tokens: Tokens, swarm: Membership, clock: Clock) -> None:
        self._site, self._signer, self._tokens = site, signer, tokens
        self._swarm, self._clock = swarm, clock
        self._admitting = asyncio.Lock()
        self._agents: Links | None = None
        self._kit = JoinKit("", "", b"")
        self._mark = ""

    def open(self, bundle: bytes, agents: Links | None = None) -> None:
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
        url = self._site.script_url
        return JoinToken(made, now + for_s, url, join_command(url, self._kit.script_sha256))

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        """Cloud-init user data with this token and these options of the script."""
        return cloud_init(self._kit.script, token, options, host_name)

    async def forget_tokens(self) -> Sequence[str]:
        """No token that was made until now is good any more, nor the Swarm's, which was told to who had one."""
        await asyncio.to_thread(self._tokens.forget)
        return await self._forgot_tokens()

    async def _forgot_tokens(self) -> Sequence[str]:
        log.info("all join tokens were revoked")
        return ["no join token that was made until now is good any more", await self._renew_swarm_token()]

    async def lets_in(self, node: str) -> bool:
        """Whether a certificate that holds, or a place in the Swarm, does. Raises EngineFailure."""
        return await asyncio.to_thread(self._signer.holds, node) or bool(await self._listed_as(node))

    async def expel(self, node: str, *, gone: bool = False) -> Sequence[str]:
        """Take back all that lets the machine in; a sentence for each. Of one that is gone, join tokens stay good.

        Raises Unavailable before anything was taken back if that cannot be written down.
        """
        forgetting = None if gone else await asyncio.to_thread(self._tokens.begin_to_forget)
        try:
            # Before the certificates that tell which Swarm nodes they are of are revoked.
            node_ids = set(await asyncio.to_thread(self._signer.node_ids, node))
            with suppress(CommonageError):  # what the Swarm does not do now is said below
                node_ids |= await self._listed_as(node)
            await self._revoke(node, gone)
            if forgetting is not None:
                await asyncio.to_thread(forgetting.carry_out)
        finally:
            if forgetting is not None:
                await asyncio.to_thread(forgetting.drop)
        said = [f"{node}'s certificate is revoked: its agent is not let in any more, nor its Docker into the registry"]
        # Before it is put out, or it would come in again.
        said += [await self._renew_swarm_token()] if gone else await self._forgot_tokens()
        try:
            found = await self._swarm.remove(node_ids)
        except CommonageError as error:
            by_hand = f"`docker node rm --force {' '.join(sorted(node_ids)) or node}` does; until then it takes no work"
            return [*said, f"it could not be put out of the Swarm: {error}; {by_hand}"]
        log.info("machine expelled", extra={"node": node, "was_in_swarm": found})
        return [*said, f"{node} is put out of the Swarm" if found else f"the Swarm has no {node}"]

    async def _revoke(self, node: str, gone: bool) -> None:
        if self._agents is None:
            await asyncio.to_thread(self._signer.revoke, node)
        else:
            await self._agents.revoke(node, gone=gone)

    async def _renew_swarm_token(self) -> str:
        try:
            await self._swarm.renew_token()
        except CommonageError as error:
            by_hand = "`docker swarm join-token --rotate worker` does"
            return f"the Swarm's own token could not be renewed: {error}; {by_hand}"
        return "the Swarm's own token for workers is another one now"

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
            images=site.images,
            daemon=site.daemon,
            agent=site.agent,
        )

    async def certificate(self, token: str, node: str, csr_pem: str, proof: IdentityProof) -> Admitted:
        """What this machine is given: its certificate binds its name to the Swarm node that it proves to be.

        Raises InvalidInput; Forbidden for a proof that does not hold; Conflict for a machine that is not in the Swarm
        under this host name, or whose name another node has.
        """
        if not node.strip() or node != node.strip():
            raise InvalidInput(f"{node!r} is no name of a machine", field="node")
        signed = statement(self._signer.certificate, token, node, csr_pem)
        node_id = verified_node_id(proof, signed, await self._swarm.trust(), self._clock.now())
        async with self._admitting:
            members = await self._members()
            if node_id not in members:
                raise Conflict(
                    f"the Swarm does not know the node {node_id} any more: run the join command again, which has the "
                    "machine join the Swarm first"
                )
            if (host_name := members[node_id].host_name) != node:
                raise Conflict(
                    f"Docker on this machine reports the host name {host_name or '(none yet)'}, and it asks to join as "
                    f"{node}: Docker reports a new host name within half a minute; then run the join command again"
                )
            if why := await self._why_taken(node, node_id, members):
                raise Conflict(why)
            # A machine that vanished has its replacement now, and would stand beside it for ever.
            former = {one for one, how in members.items() if how.name == node and how.state == _DOWN} - {node_id}
            admitted = await asyncio.to_thread(self._signer.admit, csr_pem, node, node_id)
        await self._swarm.remove(former)
        log.info("machine admitted", extra={"node": node, "node_id": node_id})
        return admitted

    async def _members(self) -> Mapping[str, SwarmMember]:
        return await self._swarm.members(await asyncio.to_thread(self._signer.bindings))

    async def _listed_as(self, node: str) -> set[str]:
        return {node_id for node_id, one in (await self._members()).items() if one.name == node}

    async def _why_taken(self, node: str, node_id: str, members: Mapping[str, SwarmMember]) -> str:
        """Why the Swarm node with this id cannot have this name; empty if it can.

        A name that is bound to a node is free again once that is down or removed. A node without a certificate keeps
        others from its host name only while that is bound to none.
        """
        bound = await asyncio.to_thread(self._signer.bindings)
        holders = {one for one, name in bound.items() if name == node}
        if node_id in holders:
            return ""
        there = {one for one in holders if one in members and members[one].state != _DOWN}
        there |= {one.node_id for one in self._connected(node)}
        if not holders:
            there |= {
                one for one, how in members.items()
                if how.host_name == node and how.state != _DOWN and one not in bound
            }  # fmt: skip
        there -= {node_id}
        if not there:
            return ""
        other = min(there)
        listed = members[other].name if other in members else node
        return (
            f"another node called {node} is here (Swarm node {other}): give this machine another host name, or take "
            f"that one out first with `commonage node rm {listed}`. If it vanished a moment ago, run this again in a "
            "minute"
        )

    def _connected(self, node: str) -> list[Heard]:
        """The agents that are connected under this name."""
        heard = () if self._agents is None else self._agents.heard()
        return [one for one in heard if one.node == node and one.connected]

    async def seen(self, node: str, node_id: str, serial: str = "") -> dict[str, Any]:
        """What the control plane sees of the Swarm node with this id that is, or wants to be, called so.

        `swarm` is its state there, empty if it is no member; `connected`: its agent is; `taken` says why it cannot have
        the name; `revoked`: the certificate of this serial number (hex) is. Raises InvalidInput, EngineFailure.
        """
        try:
            number = int(serial or "0", 16)
        except ValueError:
            raise InvalidInput(f"{serial!r} is no serial number in hex", field="serial") from None
        revoked = number in await asyncio.to_thread(self._signer.revoked)
        members = await self._members()
        return {
            "connected": any(one.node_id == node_id for one in self._connected(node)),
            "swarm": members[node_id].state if node_id in members else "",
            "taken": await self._why_taken(node, node_id, members),
            "revoked": revoked,
        }


def _mark(folder: Path, mark: str) -> str:
    """Have the mark in the shared folder, by which a machine knows it. Raises CommonageError."""
    file, content = Beneath(folder) / MARK_FILE, f"{mark}\n".encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # it is not there, or somebody put something else in its place
            if file.read(2 * len(content)) == content:
                return mark
        file.put(content, 0o644)
    except OSError as error:
        raise CommonageError(f"the shared folder {folder} cannot be written: {error.strerror or error}") from error
    return mark
