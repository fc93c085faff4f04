"""How far the fetching of an image is, from what a Docker daemon says meanwhile. Pure; agents use it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PULLED = ("Download complete", "Pull complete", "Already exists")


def words_of_fetching(image: str, said: str) -> str:
    """What a user who waits for it reads; `said` is what `progress_of` said last."""
    return f"fetching the image {image}: {said}"


def progress_of(message: Mapping[str, Any], layers: dict[str, tuple[int, int]]) -> tuple[str, float | None]:
    """What a progress message says, and how much of all layers is here. `layers` (bytes here, bytes in all) is kept."""
    status, layer = str(message.get("status", "")), str(message.get("id", ""))
    detail = message.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in _PULLED and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])
    total = sum(size for _, size in layers.values())
    if not total:
        return status.lower(), None
    here = sum(size for size, _ in layers.values())
    return f"{here / 1e6:.0f} of {total / 1e6:.0f} MB", here / total
