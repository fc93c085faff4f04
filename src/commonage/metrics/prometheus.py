"""GET /services/commonage/metrics: the series in Prometheus' text format, or as OpenMetrics on request.

Mounted by the server next to API and portal. Every client needs the token of an operator or an admin, including
programs on this machine: workloads are such programs, or connect like them. The series are of all tenants.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from commonage import messages
from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.domain.errors import Forbidden, Unavailable
from commonage.domain.permissions import Permission
from commonage.domain.workloads import TERMINAL, State
from commonage.metrics.collect import collect
from commonage.metrics.http_meter import HttpMeter
from commonage.ports.store import Filter

log = logging.getLogger(__name__)

PATH = "/services/commonage/metrics"
# Counting ended workloads is a database query; a fresher number is not needed.
COUNT_EVERY_S = 30.0


class _Collected(Collector):
    """Families that were collected before, in the form that the encoders take."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    def __init__(self, control: Control, meter: HttpMeter | None = None) -> None:
        self._control, self._meter = control, meter
        self._process = ProcessCollector(registry=None)
        self._ended: dict[State, int] | None = None
        self._counted_at = float("-inf")

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, for a scraper that accepts `accept`."""
        families = [*await collect(self._control, await self._count_ended())]
        if self._meter is not None:
            families += self._meter.collect()
        encode, content_type = choose_encoder(accept)
        # The process's own figures are read from files, and a large cluster takes a while to encode.
        text = await asyncio.to_thread(lambda: encode(_Collected([*families, *self._process.collect()])))
        return text, content_type

    async def _count_ended(self) -> dict[State, int] | None:
        """The number of ended workloads by state; the last count while the database does not answer."""
        now = self._control.clock.now()
        if now - self._counted_at >= COUNT_EVERY_S:
            try:
                self._ended = await self._control.store.count(Filter(states=TERMINAL))
            except Unavailable as error:
                log.warning("ended workloads cannot be counted: %s", error)
            self._counted_at = now
        return self._ended


def metrics_router(control: Control, meter: HttpMeter | None = None) -> APIRouter:
    """The route. `meter` adds request metrics; `meter.around` must wrap the app."""
    router = APIRouter()
    exposition = Exposition(control, meter)

    @router.get(PATH, include_in_schema=False)
    async def metrics(request: Request) -> Response:
        refusal = await _refusal(request, control)
        if refusal is not None:
            return refusal
        text, content_type = await exposition.render(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    return router


async def _refusal(request: Request, control: Control) -> Response | None:
    token = _token(request)
    try:
        principal = await control.identity.whois(token) if token else None
        if principal is None:
            return _plain_text(
                401, "Metrics need a token with the scope custom:commonage:read: Authorization: Bearer …"
            )
        access_of(principal, control.settings).need(Permission.SEE_PLATFORM)
    except Forbidden as error:
        return _plain_text(403, messages.of_error(error))
    except Unavailable as error:
        return _plain_text(503, messages.of_error(error))
    return None


def _token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() in ("bearer", "token") else None


def _plain_text(status: int, text: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(text + "\n", status, headers=headers, media_type="text/plain")
