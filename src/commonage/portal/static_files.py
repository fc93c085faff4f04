"""The portal's static files: its own (in git), and third-party ones that the build puts into static/vendor.

Each address carries a digest of the content, so that a browser may cache a file for ever and never shows an old
one.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file. `digest` is the start of its SHA-256."""

    path: Path
    media_type: str
    digest: str


class Assets:
    """All static files, listed at the start: no request can reach a file outside the folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): _asset(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES and path.is_file()
        }

    def url(self, name: str) -> str:
        """The address of a file, relative to the portal's. Raises KeyError for an unknown name."""
        return f"static/{name}?v={self._assets[name].digest}"

    async def serve(self, request: Request) -> Response:
        """GET static/NAME."""
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            return Response("no such file", status_code=404, media_type="text/plain")
        current = request.query_params.get("v") == asset.digest
        headers = {"Cache-Control": _FOR_EVER if current else "no-cache", "X-Content-Type-Options": "nosniff"}
        return FileResponse(asset.path, media_type=asset.media_type, headers=headers)


def _asset(path: Path) -> Asset:
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(path, media_type, sha256(path.read_bytes()).hexdigest()[:12])
