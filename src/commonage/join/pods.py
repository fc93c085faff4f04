"""Admits the node agents of a Kubernetes cluster, whose Pods prove by their token on which node they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from commonage.join.service import Signer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinedPod:
    """A node by its name, and the certificate (PEM) of the agent there."""

    node: str
    certificate: str


class PodJoins:
    """`identify` returns name and UID of the node on which the Pod with this token runs, or raises Forbidden."""

    def __init__(self, signer: Signer, identify: Callable[[str], Awaitable[tuple[str, str]]]) -> None:
        self._signer, self._identify = signer, identify

    async def join(self, token: str, csr_pem: str) -> JoinedPod:
        """Earlier certificates of the node are revoked. Raises Forbidden, InvalidInput, EngineFailure."""
        node, uid = await self._identify(token)
        admitted = await asyncio.to_thread(self._signer.admit, csr_pem, node, uid)
        _log.info("the agent of %s has a certificate", node)
        return JoinedPod(node, admitted.certificate)
