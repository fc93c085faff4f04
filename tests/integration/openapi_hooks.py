"""What schemathesis must be told of this API (see schemathesis.toml)."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import Case, HookContext


@schemathesis.hook
def filter_case(context: HookContext, case: Case) -> bool:
    """Leave out what is meant to last: a log that is followed, of a workload that never starts."""
    query: Any = case.query
    return str(query.get("follow") if isinstance(query, dict) else "").lower() not in {"true", "1", "yes", "on", "t", "y"}


@schemathesis.serializer("application/gzip")
def as_it_is(context: Any, value: Any) -> Any:
    """An archive is sent as the bytes it is."""
    if isinstance(value, schemathesis.openapi.Binary if hasattr(schemathesis.openapi, "Binary") else bytes):
        return bytes(value)
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
