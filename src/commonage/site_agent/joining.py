"""Nodes that join this site: its own join service, as the control plane asks for it, and nodes that leave."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.link.exchange import RequestHandler
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.messages.join import (
    IS_NODE_ADMITTED,
    NODE_KIT,
    NODE_LEFT,
    NODE_TOKEN,
    REMOVE_NODE,
    REVOKE_NODE_TOKENS,
    Admitted,
    Done,
    NodeKit,
    NodeName,
    NodeToken,
    Removal,
    WantedToken,
)
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.agents import Drains, OnProgress
from commonage.ports.joining import Joining

_log = logging.getLogger(__name__)


class SiteJoins:
    """Answers the control plane's requests with the join service of this site."""

    def __init__(self, joining: Joining) -> None:
        self._joining = joining

    def handlers(self) -> Mapping[RequestType[Any, Any], RequestHandler]:
        return {
            NODE_TOKEN: self._token,
            NODE_KIT: self._kit,
            REVOKE_NODE_TOKENS: self._revoke_tokens,
            IS_NODE_ADMITTED: self._is_admitted,
            REMOVE_NODE: self._remove,
        }

    async def _token(self, wanted: WantedToken, _: OnProgress) -> NodeToken:
        made = await self._joining.token(wanted.for_s)
        return NodeToken(made.token, made.url, made.command)

    async def _kit(self, _nothing: Nothing, _: OnProgress) -> NodeKit:
        kit = await self._joining.kit()
        return NodeKit(kit.script, kit.script_sha256, base64.b64encode(kit.bundle).decode())

    async def _revoke_tokens(self, _nothing: Nothing, _: OnProgress) -> Done:
        return Done(tuple(await self._joining.revoke_tokens()))

    async def _is_admitted(self, wanted: NodeName, _: OnProgress) -> Admitted:
        return Admitted(await self._joining.is_admitted(wanted.node))

    async def _remove(self, wanted: Removal, _: OnProgress) -> Done:
        return Done(tuple(await self._joining.remove_node(wanted.node, gone=wanted.gone)))


class SiteDrains(Drains):
    """A node that left this site: the control plane forgets it, this site revokes its access.

    `connection` returns the current connection, None without one; `refresh` reports the nodes of this site.
    """

    def __init__(
        self,
        joining: Joining,
        connection: Callable[[], SiteConnection | None],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._joining, self._connection, self._refresh = joining, connection, refresh

    async def left(self, name: str) -> None:
        connection = self._connection()
        if connection is None:
            raise EngineFailure("this site is not connected to the control plane", retryable=True)
        await connection.request(NODE_LEFT, NodeName(name))

    async def finish_leave(self, name: str) -> None:
        try:
            done = await self._joining.remove_node(name, gone=True)
        except (CommonageError, OSError) as error:
            _log.warning("%s has left, and may still be let in (`commonage node rm %s`): %s", name, name, error)
        else:
            _log.info("%s has left: %s", name, "; ".join(done))
            await self._refresh()
