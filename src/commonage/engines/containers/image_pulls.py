"""Progress of an image pull, from a Docker daemon's messages, and whether its registry refuses it.

Pure; used by the engines and by agents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commonage.domain.reasons.attempts import PullingImage

# Moby's wording of registry responses. It is a single word if the response was to a HEAD request, which has no body.
_DENIED = re.compile(
    r"pull access denied|requested access to the resource is denied|(^|: )denied(:|$)|\b403 forbidden", re.IGNORECASE
)
_UNKNOWN = re.compile(r"(^|: )unauthorized(:|$)|no basic auth credentials|\b401 unauthorized", re.IGNORECASE)
_PULLED = ("Download complete", "Pull complete", "Already exists")


def refusal_of(image: str, said: str, node: str = "") -> str:
    """Why a registry refuses an image, as text; empty if the daemon's message `said` is no refusal, and may pass.

    `node` names a node that has an account of its own at the site's registry.
    """
    registry, said = registry_of(image), " ".join(said.split())
    who = node or "this machine"
    by_hand = f"run `docker login {registry}` and `docker pull {image}` on the node, as root"
    if _DENIED.search(said):
        return (
            f"the registry {registry} does not let {who} have the image {image}, or has none of that name. "
            f"Check the name, and that the tenant in it may use it; if it needs an account there, {by_hand}"
        )
    if _UNKNOWN.search(said):
        joins = f"have it join again (`commonage node join`) if the registry is the site's own, else {by_hand}"
        return (
            f"the registry {registry} does not accept the account of {who}, and does not give it the image {image}. "
            f"What to do: {joins if node else by_hand}"
        )
    return ""


def registry_of(image: str) -> str:
    """`HOST:PORT` of the registry that an image's name means."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or "." in first or ":" in first) else "docker.io"


def progress_of(
    image: str, message: Mapping[str, Any], layers: dict[str, tuple[int, int]]
) -> tuple[PullingImage, float | None]:
    """The step that a progress message reports, and the fraction of all layers that is here.

    Updates `layers` (bytes here, bytes in total).
    """
    status, layer = str(message.get("status", "")), str(message.get("id", ""))
    detail = message.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in _PULLED and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])
    total = sum(size for _, size in layers.values())
    if not total:
        return PullingImage(image=image, step=status.lower()), None
    here = sum(size for size, _ in layers.values())
    return PullingImage(image=image, pulled_bytes=here, total_bytes=total), here / total
