"""Ids in addresses: what cannot be one is not looked for."""

from __future__ import annotations

import re

from commonage.domain.errors import NotFound

_WORKLOAD = re.compile(r"[0-9a-hjkmnp-tv-z]{13}")


def known_form(workload_id: str) -> str:
    """The id itself. Raises NotFound for what no workload can be called, so that no store ever sees it."""
    if _WORKLOAD.fullmatch(workload_id) is None:
        shown = workload_id if len(workload_id) <= 60 else workload_id[:57] + "..."
        raise NotFound(f"there is no workload {shown!r}", code="workload-not-found")
    return workload_id
