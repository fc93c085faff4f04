"""Ids in addresses: what cannot be one is not looked for, and `dry-run` is none."""

from __future__ import annotations

import re

from starlette.convertors import Convertor, register_url_convertor

from commonage.domain.errors import NotFound

_FORM = re.compile(r"[0-9a-hjkmnp-tv-z]{13}")


class _WorkloadConvertor(Convertor[str]):
    """A part of a path that may be the id of a workload: all but the one route that has a name in its place."""

    regex = r"(?!dry-run$)[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("workload", _WorkloadConvertor())

WORKLOAD = "/workloads/{workload_id:workload}"


def known_form(workload_id: str) -> str:
    """The id itself. Raises NotFound for what no workload can be called, so that no store ever sees it."""
    if _FORM.fullmatch(workload_id) is None:
        shown = workload_id if len(workload_id) <= 60 else workload_id[:57] + "..."
        raise NotFound(f"there is no workload {shown!r}", code="workload-not-found")
    return workload_id
