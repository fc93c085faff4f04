"""Checks the reports of a site: they may be about that site only, and hold nothing that cannot be stored.

Whether an attempt belongs to the site is checked where allocations are known: by the reconcile loop, the sampling loop
and `control.usage.site_samples`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from commonage.domain.codec import Unreadable, storable
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Capabilities, Status
from commonage.link.sites.messages.engine import SiteMeasured, SiteReport
from commonage.link.sites.messages.storage import HomeSize
from commonage.ports.cron_sites import SiteRun
from commonage.ports.homes import FolderSize

_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_MAX_STATUS_BYTES = 64 * 1024
_MAX_COLUMN = 2**31 - 1
MAX_NODES = 10_000


def checked_status(status: Status) -> Status:
    """Raises Unreadable."""
    if not _ATTEMPT.fullmatch(status.attempt_id):
        raise Unreadable(f"{status.attempt_id[:100]!r} cannot be the id of an attempt")
    written = storable(status, _MAX_COLUMN)
    if len(written) > _MAX_STATUS_BYTES:
        raise Unreadable(
            f"the status of {status.attempt_id} has {len(written)} bytes; the limit is {_MAX_STATUS_BYTES}"
        )
    return status if status.url is None or _is_address(status.url) else replace(status, url=None)


def checked_measured(measured: SiteMeasured) -> SiteMeasured:
    """Raises Unreadable."""
    storable(measured)
    storable(measured.measurements, _MAX_COLUMN)
    return measured


def is_storable(value: object) -> bool:
    try:
        storable(value)
    except Unreadable:
        return False
    return True


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def checked_report(report: SiteReport) -> SiteReport:
    """Without nodes that cannot exist, or are listed twice. Raises Unreadable."""
    storable(report)
    nodes: dict[str, NodeReport] = {}
    for node in report.nodes[:MAX_NODES]:
        if _NODE.fullmatch(node.name):
            nodes.setdefault(node.name, node)
    return replace(report, nodes=tuple(nodes.values()), capabilities=_own(report.capabilities, nodes.keys()))


def checked_run(run: SiteRun) -> SiteRun:
    """Raises Unreadable."""
    written = storable(run)
    if len(written) > _MAX_STATUS_BYTES:
        raise Unreadable(f"a run of cron job {run.cron_job[:40]!r} has {len(written)} bytes")
    return run


def checked_waiting(waiting: Sequence[tuple[str, Reason]], tenants: Collection[str]) -> dict[str, Reason]:
    """Of these tenants alone. Raises Unreadable."""
    if len(storable(tuple(waiting), _MAX_COLUMN)) > _MAX_STATUS_BYTES * max(1, len(tenants)):
        raise Unreadable("it says too much about its tenants")
    return {tenant: why for tenant, why in waiting if tenant in tenants}


def checked_homes(homes: Sequence[HomeSize]) -> tuple[HomeSize, ...]:
    """Without sizes that cannot be. Whether a home counts for a tenant is checked where the tenants are known.

    Raises Unreadable.
    """
    storable(tuple(homes))
    return tuple(one for one in homes if one.used_mib >= 0)


def checked_folders(folders: Sequence[FolderSize], volumes: Collection[str]) -> tuple[FolderSize, ...]:
    """Likewise, of these volumes alone. Raises Unreadable."""
    storable(tuple(folders))
    return tuple(one for one in folders if one.used_mib >= 0 and one.volume in volumes)


def _own(capabilities: Capabilities, nodes: object) -> Capabilities:
    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in nodes)  # type: ignore[operator]  # the keys of a dict

    return replace(capabilities, bounded_on=kept(capabilities.bounded_on), unbounded_on=kept(capabilities.unbounded_on))
