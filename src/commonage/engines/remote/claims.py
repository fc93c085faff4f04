"""Checks the reports of a site: they may be about that site only, and hold nothing that cannot be stored.

Whether an attempt belongs to the site is checked where allocations are known: by the reconcile loop, the sampling loop
and `control.usage.site_samples`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from commonage.domain.codec import Unreadable, to_json
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Capabilities, Status
from commonage.link.exchange import MAX_TEXT
from commonage.link.sites.messages.engine import SiteReport
from commonage.link.sites.messages.storage import HomeSize
from commonage.ports.cron_sites import SiteRun
from commonage.ports.homes import FolderSize

_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_MAX_STATUS_BYTES = 64 * 1024
_MAX_STATUS_NUMBER, _MAX_REPORT_NUMBER = 2**31 - 1, 2**53
MAX_NODES = MAX_DEVICES = MAX_FOLDERS = 10_000


def checked_status(status: Status) -> Status:
    """Raises Unreadable."""
    if not _ATTEMPT.fullmatch(status.attempt_id):
        raise Unreadable(f"{status.attempt_id[:100]!r} cannot be the id of an attempt")
    written = _storable(status, _MAX_STATUS_NUMBER)
    if len(written) > _MAX_STATUS_BYTES:
        raise Unreadable(
            f"the status of {status.attempt_id} has {len(written)} bytes; the limit is {_MAX_STATUS_BYTES}"
        )
    return status if status.url is None or _is_address(status.url) else replace(status, url=None)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def checked_report(report: SiteReport) -> SiteReport:
    """Without nodes that cannot exist, are listed twice, or are beyond the limits of a site. Raises Unreadable."""
    _storable(report, _MAX_REPORT_NUMBER)
    nodes: dict[str, NodeReport] = {}
    devices = 0
    for node in report.nodes[:MAX_NODES]:
        if not _NODE.fullmatch(node.name) or not node.is_possible or node.name in nodes:
            continue
        devices += len(node.devices)
        if devices > MAX_DEVICES:
            break
        nodes[node.name] = node
    return replace(
        report,
        nodes=tuple(nodes.values()),
        capabilities=_own(report.capabilities, nodes.keys()),
        failure=report.failure[:MAX_TEXT],
    )


def checked_run(run: SiteRun) -> SiteRun:
    """Raises Unreadable."""
    written = _storable(run, _MAX_REPORT_NUMBER)
    if len(written) > _MAX_STATUS_BYTES:
        raise Unreadable(f"a run of cron job {run.cron_job[:40]!r} has {len(written)} bytes")
    return run


def checked_waiting(waiting: Sequence[tuple[str, Reason]], tenants: Collection[str]) -> dict[str, Reason]:
    """Of these tenants alone. Raises Unreadable."""
    if len(_storable(tuple(waiting), _MAX_STATUS_NUMBER)) > _MAX_STATUS_BYTES * max(1, len(tenants)):
        raise Unreadable("it says too much about its tenants")
    return {tenant: why for tenant, why in waiting if tenant in tenants}


def checked_homes(homes: Sequence[HomeSize]) -> tuple[HomeSize, ...]:
    """Without sizes that cannot be. Whether a home counts for a tenant is checked where the tenants are known.

    Raises Unreadable.
    """
    _storable(tuple(homes), _MAX_REPORT_NUMBER)
    return tuple(one for one in homes[:MAX_FOLDERS] if one.used_mib >= 0)


def checked_folders(folders: Sequence[FolderSize], volumes: Collection[str]) -> tuple[FolderSize, ...]:
    """Likewise, of these volumes alone. Raises Unreadable."""
    _storable(tuple(folders), _MAX_REPORT_NUMBER)
    return tuple(
        one for one in folders[:MAX_FOLDERS] if one.used_mib >= 0 and (one.size_mib or 0) >= 0 and one.volume in volumes
    )


def _own(capabilities: Capabilities, nodes: object) -> Capabilities:
    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in nodes)  # type: ignore[operator]  # the keys of a dict

    return replace(capabilities, bounded_on=kept(capabilities.bounded_on), unbounded_on=kept(capabilities.unbounded_on))


def _storable(value: object, max_number: int) -> str:
    """The value as JSON. Raises Unreadable for numbers that a database refuses; the link has bounded all others."""
    data = to_json(value)
    _check_numbers(data, max_number)
    return json.dumps(data, ensure_ascii=False)


def _check_numbers(data: object, most: int) -> None:
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif type(one) is int and not -most <= one <= most:
            raise Unreadable("it has a number out of range")
