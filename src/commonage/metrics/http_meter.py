"""Middleware that counts requests and measures the time until the response begins, for /metrics.

A stream (live logs, events) lasts as long as its reader, so the duration of the response is not measured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import perf_counter
from typing import Any

from prometheus_client import Counter, Histogram, Metric

from commonage.metrics.series import BY_NAME

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Around the target for lists and submissions (50 ms), and up to the time after which users give up.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_API = "/services/commonage/api/"
_PORTAL = "/services/commonage/"


class HttpMeter:
    """Request metrics; `around(app)` is the app with the meter in front."""

    def __init__(self) -> None:
        requests, seconds = BY_NAME["commonage_http_requests_total"], BY_NAME["commonage_http_request_seconds"]
        self._requests = Counter(requests.name, requests.help, requests.labels, registry=None)
        self._seconds = Histogram(seconds.name, seconds.help, seconds.labels, buckets=BUCKETS_S, registry=None)

    def collect(self) -> Iterable[Metric]:
        yield from self._requests.collect()
        yield from self._seconds.collect()

    def around(self, app: App) -> App:

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = perf_counter()  # not the loop's time: uvloop's does not advance within an iteration

            async def send_and_record(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._record(scope, message["status"], perf_counter() - began)
                await send(message)

            await app(scope, receive, send_and_record)

        return measured

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        area = _area(scope["path"])
        # A client may send any method; each would become a series.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(area, method, f"{status // 100}xx").inc()
        self._seconds.labels(area).observe(seconds)


def _area(path: str) -> str:
    if path.startswith(_API):
        return "api"
    return "portal" if path.startswith(_PORTAL) else "other"
