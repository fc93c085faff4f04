"""How long a node of the cluster has not answered. Pure."""

from __future__ import annotations

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.statuses import instant


def not_answering_since(node: Manifest) -> float | None:
    """Since when the node is not ready, unix seconds; None if it is."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one["type"] == "Ready":
            return None if one["status"] == "True" else instant(one.get("lastTransitionTime"))
    return 0.0


def is_given_up(node: Manifest, lost_after_s: float, now: float) -> bool:
    """True if it has not answered for longer than that. Its Pods may still run; only an admin can rule that out."""
    since = not_answering_since(node)
    return since is not None and now - since > lost_after_s
