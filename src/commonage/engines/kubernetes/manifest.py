"""The JSON form of a Kubernetes object, its owner, whether a Pod has ended, and objects that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from commonage.domain.errors import EngineFailure

Manifest: TypeAlias = dict[str, Any]


def owned(manifest: Manifest, pod: Manifest) -> Manifest:
    """The object with the Pod as its owner, so that it is deleted with the Pod. `pod` is what the API returned."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Read `what`, parts of which tenants or nodes write. Raises EngineFailure if it is not of the expected form."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {str(error)[:100]}"
        raise EngineFailure(f"{what} is not of the expected form, and is left out ({why})") from error


def has_ended(pod: Manifest) -> bool:
    """Whether all containers of the Pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
