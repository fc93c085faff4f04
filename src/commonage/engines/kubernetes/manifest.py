"""The JSON form of a Kubernetes object."""

from __future__ import annotations

from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
