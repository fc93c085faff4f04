"""Pushes an image from a folder (an OCI layout) to a registry, with a token for one repository. Standard library only.

buildah pushes with accounts; a build has no account, only such a token.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from commonage.images.buildah import ImageError

_WITHIN_S = 600


@dataclass(frozen=True, slots=True)
class PushTarget:
    """`registry` is `HOST:PORT`."""

    registry: str
    repository: str
    token: str
    trust: ssl.SSLContext

    def __repr__(self) -> str:
        return f"PushTarget({self.registry}/{self.repository})"  # the token is secret

    @property
    def base(self) -> str:
        return f"https://{self.registry}/v2/{self.repository}/"


def push_layout(layout: Path, target: PushTarget, tag: str) -> tuple[str, int]:
    """Push the only image of the layout. Returns its digest and the size of its layers in bytes. Raises ImageError."""
    [described] = _read(layout / "index.json")["manifests"]
    manifest = _blob(layout, described["digest"])
    content = _read(manifest)
    blobs = [content["config"], *content["layers"]]
    for blob in {one["digest"]: one for one in blobs}.values():
        _push_blob(_blob(layout, blob["digest"]), blob["digest"], target)
    kind = {"Content-Type": described["mediaType"]}
    _call("PUT", urljoin(target.base, f"manifests/{tag}"), target, manifest.read_bytes(), kind)
    return described["digest"], sum(one["size"] for one in content["layers"])


def _push_blob(path: Path, digest: str, target: PushTarget) -> None:
    if _call("HEAD", urljoin(target.base, f"blobs/{digest}"), target, missing=True) is not None:
        return
    begun = _call("POST", urljoin(target.base, "blobs/uploads/"), target, b"")
    place = urljoin(target.base, (begun or {}).get("Location", ""))
    if urlsplit(place).netloc != target.registry:
        raise ImageError(f"the registry {target.registry} sends uploads to another place: {place[:100]}")
    joint = "&" if urlsplit(place).query else "?"
    kind = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
    with path.open("rb") as opened:
        _call("PUT", f"{place}{joint}digest={digest}", target, opened, kind)


def _call(
    method: str,
    url: str,
    target: PushTarget,
    body: bytes | IO[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    missing: bool = False,
) -> Mapping[str, str] | None:
    """The headers of the answer; None for a missing blob that may be `missing`. Raises ImageError."""
    fields = {**(headers or {}), "Authorization": f"Bearer {target.token}"}
    request = urllib.request.Request(url, body, fields, method=method)  # noqa: S310 - https, see PushTarget.base
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S, context=target.trust) as answer:  # noqa: S310
            return dict(answer.headers)
    except urllib.error.HTTPError as error:
        if missing and error.code == 404:
            return None
        raise ImageError(f"the registry {target.registry} refuses {target.repository}: {_reason(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ImageError(f"the registry {target.registry} cannot be reached: {error}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        first = json.loads(error.read(64 * 1024))["errors"][0]
        return f"{first['code']}: {first['message']}"[:300]
    except (ValueError, KeyError, IndexError, TypeError, OSError):
        return f"HTTP {error.code}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _blob(layout: Path, digest: str) -> Path:
    algorithm, _, name = digest.partition(":")
    return layout / "blobs" / algorithm / name
