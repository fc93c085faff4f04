"""The join service of a site elsewhere, which lets nodes join there: the port `Joining` over the site link."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from commonage.domain.errors import Conflict, EngineFailure, Unavailable
from commonage.domain.reasons.nodes import NodesCannotJoin, SiteUnreachable, UnreachableJoinService
from commonage.join.script import cloud_init
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.messages.join import (
    IS_NODE_ADMITTED,
    NODE_KIT,
    NODE_TOKEN,
    REMOVE_NODE,
    REVOKE_NODE_TOKENS,
    NodeName,
    Removal,
    WantedToken,
)
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.clock import Clock
from commonage.ports.joining import Joining, JoinKit, JoinToken

Q = TypeVar("Q")
A = TypeVar("A")


class SiteJoining(Joining):
    """`connection` returns the current connection, None without one; `lets_join`: whether nodes can join the site.

    `unreachable` says why there is no connection.
    """

    def __init__(
        self,
        connection: Callable[[], SiteConnection | None],
        lets_join: Callable[[], bool],
        unreachable: Callable[[], SiteUnreachable],
        clock: Clock,
    ) -> None:
        self._connection, self._lets_join, self._unreachable = connection, lets_join, unreachable
        self._clock = clock

    async def _ask(self, kind: RequestType[Q, A], params: Q) -> A:
        """Raises Unavailable without a link, Conflict if no node can join this site."""
        connection, unreachable = self._connection(), self._unreachable()
        if connection is not None and not self._lets_join():
            raise Conflict(NodesCannotJoin(site=unreachable.site))
        try:
            if connection is None:
                raise ConnectionLost("the site is not connected")
            return await connection.request(kind, params)
        except ConnectionLost as error:
            raise Unavailable(UnreachableJoinService(site=unreachable.site, since=unreachable.since)) from error

    async def kit(self) -> JoinKit:
        found = await self._ask(NODE_KIT, Nothing())
        try:
            return JoinKit(found.script, found.script_sha256, base64.b64decode(found.bundle, validate=True))
        except binascii.Error as error:
            raise EngineFailure("the site sent a program for nodes that cannot be read") from error

    async def token(self, for_s: int) -> JoinToken:
        found = await self._ask(NODE_TOKEN, WantedToken(for_s))
        return JoinToken(found.token, self._clock.now() + for_s, found.url, found.command)

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        return cloud_init((await self.kit()).script, token, options, host_name)

    async def revoke_tokens(self) -> Sequence[str]:
        return (await self._ask(REVOKE_NODE_TOKENS, Nothing())).done

    async def is_admitted(self, node: str) -> bool:
        """False if the site cannot say."""
        try:
            return (await self._ask(IS_NODE_ADMITTED, NodeName(node))).admitted
        except (Conflict, Unavailable):
            return False

    async def remove_node(self, node: str, *, gone: bool = False) -> Sequence[str]:
        """Nothing at a site that no node joins. Without the link the node's access stays, which the answer says."""
        try:
            return (await self._ask(REMOVE_NODE, Removal(node, gone))).done
        except Conflict:
            return ()
        except Unavailable:
            if not self._lets_join():
                return ()
            site = self._unreachable().site
            return [
                f"{node}'s access to site {site} is not revoked, because the site is unreachable: remove it again once "
                "`commonage site ls` shows the site connected"
            ]
