"""The JSON form of a Kubernetes object, its owner, and whether a Pod has ended."""

from __future__ import annotations

from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]


def owned(manifest: Manifest, pod: Manifest) -> Manifest:
    """The object with the Pod as its owner, so that it is deleted with the Pod. `pod` is what the API returned."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def has_ended(pod: Manifest) -> bool:
    """Whether all containers of the Pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
