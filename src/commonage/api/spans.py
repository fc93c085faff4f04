"""Spans of time in queries: what is left out, and which way round they must be."""

from __future__ import annotations

from commonage.domain.errors import InvalidInput
from commonage.wire.queries import MetricsQuery, UsageQuery

HOUR_S = 3600.0
MONTH_S = 30 * 24 * HOUR_S


def span_of(query: MetricsQuery | UsageQuery, now: float, *, default_s: float = HOUR_S) -> tuple[float, float]:
    """[since, until) of a query; the last `default_s` seconds where it says nothing. Raises InvalidInput."""
    until = now if query.until is None else query.until
    since = max(0.0, until - default_s) if query.since is None else query.since
    if since > until:
        raise InvalidInput(f"since {since:.0f} is after until {until:.0f}", field="since", code="invalid-parameter")
    return since, until
