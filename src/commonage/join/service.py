"""The join service: admits nodes to the site, sends them the join config, issues their certificates, and removes them.

It reaches the site's certificate authority, its Swarm and its agents through small protocols. `listener` serves nodes,
the API serves admins. The server passes the packed agent.
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
from commonage.files.safe_path import SafePath
from commonage.join.config import MARK_FILE, IdentityProof, JoinConfig, statement
from commonage.join.node_identity import verified_node_id
from commonage.join.script import cloud_init, digest_of, join_command, join_script
from commonage.join.tokens import Tokens
from commonage.ports.agents import AgentReport
from commonage.ports.clock import Clock
from commonage.ports.joining import JoinKit, JoinToken, Membership, SwarmMember

log = logging.getLogger(__name__)
_DOWN = "down"


class Admitted(Protocol):
    """The credentials of a node: a certificate (PEM), and its own registry secret."""

    @property
    def certificate(self) -> str: ...

    @property
    def account(self) -> str:
        """Valid as long as the certificate."""
        ...


class AgentLinks(Protocol):
    """The links to the agents of nodes."""

    def agent_reports(self) -> Sequence[AgentReport]: ...

    async def revoke(self, node: str, *, gone: bool = False) -> None:
        """Revoke all credentials of this node and end its link at once. It is then at fault, unless it is gone."""
        ...


class Signer(Protocol):
    """The site's authority, which signs the certificates of nodes."""

    @property
    def certificate(self) -> str: ...

    def admit(self, csr_pem: str, node: str, node_id: str) -> Admitted:
        """Issue credentials that bind the node's name to its Swarm node id. Raises InvalidInput.

        All earlier credentials of the name and of the Swarm node are revoked.
        """
        ...

    def bindings(self) -> Mapping[str, str]:
        """The names that valid certificates bind to Swarm node ids, by id."""
        ...

    def node_ids(self, node: str) -> Collection[str]:
        """The Swarm node ids that this name is, or was, bound to, except those that another name is bound to now."""
        ...

    def revoke(self, node: str) -> None: ...

    def revoked(self) -> Collection[int]: ...

    def holds(self, node: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The settings that nodes receive in addition to the Swarm's token. `script_url` is where people fetch the script.

    `listeners` and `agents` are HOST:PORT, as other nodes reach them; `shared_dir` is the folder that all of them see;
    `images` are pulled while joining; `daemon` and `agent` are required values in Docker's settings and in the agents'.
    `serves_script`: the script comes from the join listener, whose certificate no node can verify before it has it.
    `registry_authority` verifies the registry if this is not the site's own authority.
    """

    name: str
    script_url: str
    listeners: tuple[str, ...]
    agents: tuple[str, ...]
    shared_dir: Path
    registry: str = ""
    images: tuple[str, ...] = ()
    daemon: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    serves_script: bool = False
    registry_authority: str = ""


class JoinService:
    """Implements the port `ports.joining.Joining`, and answers the join listener."""

    def __init__(self, site: Site, signer: Signer, tokens: Tokens, swarm: Membership, clock: Clock) -> None:
        self._site, self._signer, self._tokens = site, signer, tokens
        self._swarm, self._clock = swarm, clock
        self._admitting = asyncio.Lock()
        self._agents: AgentLinks | None = None
        self._kit = JoinKit("", "", b"")
        self._mark = ""

    def open(self, bundle: bytes, agents: AgentLinks | None = None) -> None:
        """Start, with the packed program for nodes, and the agents' links. Writes the mark into the shared folder.

        Blocks for a moment. Raises CommonageError if the folder cannot be written.
        """
        script = join_script(self._site.name, self._signer.certificate)
        self._kit, self._agents = JoinKit(script, digest_of(script), bundle), agents
        self._mark = _mark(self._site.shared_dir, digest_of(self._signer.certificate))

    # --- for admins -------------------------------------------------------------------------------------------------

    async def kit(self) -> JoinKit:
        """The same for every node; it contains no secret."""
        return self._kit

    async def token(self, for_s: int) -> JoinToken:
        """Create a token. Raises InvalidInput."""
        now = self._clock.now()
        token = await asyncio.to_thread(self._tokens.make, self._site.listeners, now, for_s)
        url = self._site.script_url
        command = join_command(url, self._kit.script_sha256, is_verified=not self._site.serves_script)
        return JoinToken(token, now + for_s, url, command)

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        return cloud_init(self._kit.script, token, options, host_name)

    async def revoke_tokens(self) -> Sequence[str]:
        """Invalidate all tokens made until now, and the Swarm's token, which was sent to nodes that had one."""
        await asyncio.to_thread(self._tokens.revoke_all)
        return await self._report_revoked_tokens()

    async def _report_revoked_tokens(self) -> Sequence[str]:
        log.info("all join tokens were revoked")
        return ["all join tokens are revoked", await self._renew_swarm_token()]

    async def is_admitted(self, node: str) -> bool:
        """Whether a valid certificate, or membership in the Swarm, lets the node in. Raises EngineFailure."""
        return await asyncio.to_thread(self._signer.holds, node) or bool(await self._listed_as(node))

    async def remove_node(self, node: str, *, gone: bool = False) -> Sequence[str]:
        """Remove everything that lets the node in; returns a sentence for each. If it is gone, join tokens stay valid.

        Raises Unavailable before anything was revoked if the removal cannot be written down.
        """
        revocation = None if gone else await asyncio.to_thread(self._tokens.prepare_revocation)
        try:
            # Read before revocation: valid certificates bind the name to its Swarm nodes.
            node_ids = set(await asyncio.to_thread(self._signer.node_ids, node))
            with suppress(CommonageError):  # failures in the Swarm are reported below
                node_ids |= await self._listed_as(node)
            if self._agents is None:
                await asyncio.to_thread(self._signer.revoke, node)
            else:
                await self._agents.revoke(node, gone=gone)
            if revocation is not None:
                await asyncio.to_thread(revocation.commit)
        finally:
            if revocation is not None:
                await asyncio.to_thread(revocation.cancel)
        done = [f"{node}'s certificate is revoked: its agent and its access to the registry are blocked"]
        # Before the node is removed from the Swarm: otherwise it could join again.
        done += [await self._renew_swarm_token()] if gone else await self._report_revoked_tokens()
        try:
            was_listed = await self._swarm.remove(node_ids)
        except CommonageError as error:
            by_hand = f"run `docker node rm --force {' '.join(sorted(node_ids)) or node}`. Until then it gets no work"
            return [*done, f"it could not be removed from the Swarm: {error}; {by_hand}"]
        log.info("node removed", extra={"node": node, "was_in_swarm": was_listed})
        return [*done, f"{node} is removed from the Swarm" if was_listed else f"the Swarm does not list {node}"]

    async def _renew_swarm_token(self) -> str:
        try:
            await self._swarm.renew_token()
        except CommonageError as error:
            by_hand = "run `docker swarm join-token --rotate worker`"
            return f"the Swarm's join token for workers could not be renewed: {error}; {by_hand}"
        return "the Swarm's join token for workers is renewed"

    @property
    def authority(self) -> str:
        """The certificate of the site's authority (PEM). No secret."""
        return self._signer.certificate

    # --- for nodes --------------------------------------------------------------------------------------------------

    async def admit(self, token: str) -> None:
        """Raises Forbidden unless this token is valid."""
        await asyncio.to_thread(self._tokens.check, token, self._clock.now())

    async def join_config(self) -> JoinConfig:
        """Everything that a node needs to know of the site. Raises EngineFailure if the Swarm does not answer."""
        admission = await self._swarm.admission()
        site = self._site
        return JoinConfig(
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
            registry_authority=site.registry_authority,
        )

    async def certificate(self, token: str, node: str, csr_pem: str, proof: IdentityProof) -> Admitted:
        """Issue the node's credentials: the certificate binds its name to the Swarm node that it proves to be.

        Raises InvalidInput; Forbidden for a proof that is not valid; Conflict for a node that is not in the Swarm under
        this host name, or whose name another node has.
        """
        if not node.strip() or node != node.strip():
            raise InvalidInput(f"{node!r} is not a valid node name", field="node")
        signed = statement(self._signer.certificate, token, node, csr_pem)
        node_id = verified_node_id(proof, signed, await self._swarm.trust(), self._clock.now())
        async with self._admitting:
            members = await self._members()
            if node_id not in members:
                raise Conflict(
                    f"the Swarm no longer lists the node {node_id}: run the join command again, which joins it to the "
                    "Swarm first"
                )
            if (host_name := members[node_id].host_name) != node:
                raise Conflict(
                    f"Docker on this machine reports the host name {host_name or '(none yet)'}, and it asks to join as "
                    f"{node}: Docker reports a new host name within half a minute; then run the join command again"
                )
            if reason := await self._why_name_taken(node, node_id, members):
                raise Conflict(reason)
            # Its replacement exists now: the old member would stay in the list for ever.
            former = {one for one, how in members.items() if how.name == node and how.state == _DOWN} - {node_id}
            admitted = await asyncio.to_thread(self._signer.admit, csr_pem, node, node_id)
        await self._swarm.remove(former)
        log.info("node admitted", extra={"node": node, "node_id": node_id})
        return admitted

    async def _members(self) -> Mapping[str, SwarmMember]:
        return await self._swarm.members(await asyncio.to_thread(self._signer.bindings))

    async def _listed_as(self, node: str) -> set[str]:
        return {node_id for node_id, one in (await self._members()).items() if one.name == node}

    async def _why_name_taken(self, node: str, node_id: str, members: Mapping[str, SwarmMember]) -> str:
        """Why the Swarm node with this id cannot have this name; empty if it can.

        A name that is bound to a node is free again once that node is down or removed. A node without a certificate
        reserves its host name only while that name is bound to no node.
        """
        bound = await asyncio.to_thread(self._signer.bindings)
        holders = {one for one, name in bound.items() if name == node}
        if node_id in holders:
            return ""
        others = {one for one in holders if one in members and members[one].state != _DOWN}
        others |= {one.node_id for one in self._connected(node)}
        if not holders:
            others |= {
                one for one, how in members.items()
                if how.host_name == node and how.state != _DOWN and one not in bound
            }  # fmt: skip
        others -= {node_id}
        if not others:
            return ""
        other = min(others)
        listed = members[other].name if other in members else node
        return (
            f"another node has the name {node} (Swarm node {other}): give this machine another host name, or remove "
            f"the other node with `commonage node rm {listed}`. If it went down a moment ago, retry in a minute"
        )

    def _connected(self, node: str) -> list[AgentReport]:
        reports = () if self._agents is None else self._agents.agent_reports()
        return [one for one in reports if one.node == node and one.connected]

    async def registration(self, node: str, node_id: str, serial: str = "") -> dict[str, Any]:
        """The control plane's view of the Swarm node with this id and this name.

        `swarm` is its state there, empty if it is no member; `connected`: its agent is connected; `taken` says why it
        cannot have the name; `revoked`: the certificate with this serial number (hex) is revoked. Raises InvalidInput,
        EngineFailure.
        """
        try:
            number = int(serial or "0", 16)
        except ValueError:
            raise InvalidInput(f"{serial!r} is not a serial number in hex", field="serial") from None
        revoked = number in await asyncio.to_thread(self._signer.revoked)
        members = await self._members()
        return {
            "connected": any(one.node_id == node_id for one in self._connected(node)),
            "swarm": members[node_id].state if node_id in members else "",
            "taken": await self._why_name_taken(node, node_id, members),
            "revoked": revoked,
        }


def _mark(folder: Path, mark: str) -> str:
    """Write the mark by which nodes recognise the shared folder. Raises CommonageError."""
    file, content = SafePath(folder) / MARK_FILE, f"{mark}\n".encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # it does not exist, or something else is in its place
            if file.read(2 * len(content)) == content:
                return mark
        file.write(content, 0o644)
    except OSError as error:
        raise CommonageError(f"the shared folder {folder} cannot be written: {error.strerror or error}") from error
    return mark
