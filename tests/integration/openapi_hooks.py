"""Hooks of schemathesis for this API; schemathesis.toml names this file."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import Case, HookContext

YES = {"true", "1", "yes", "on", "t", "y"}


@schemathesis.hook
def filter_case(context: HookContext, case: Case) -> bool:
    """Skip requests that do not end: the followed log of a workload that never starts."""
    query: Any = case.query
    return not isinstance(query, dict) or str(query.get("follow")).lower() not in YES


@schemathesis.serializer("application/gzip")
def as_it_is(context: Any, value: Any) -> bytes:
    """Send an archive as raw bytes."""
    return getattr(value, "data", None) or str(value).encode(errors="replace")
