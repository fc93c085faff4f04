"""Static files of the portal: scripts and styles, third-party ones in static/vendor, and the built documentation.

An address with a digest of the content may be cached forever. The build makes static/vendor and docs_site.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from commonage.domain.errors import NotFound
from commonage.wire.hub import DOCS_PATH

ASSETS_FOLDER = Path(__file__).parent / "static"
DOCS_FOLDER = Path(__file__).parent / "docs_site"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file. `digest` is the start of its SHA-256."""

    path: Path
    media_type: str
    digest: str


class Assets:
    """All static files, listed at the start: no request can reach a file outside the folder."""

    def __init__(self, folder: Path = ASSETS_FOLDER) -> None:
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
        headers = {"Cache-Control": _FOREVER if current else "no-cache", "X-Content-Type-Options": "nosniff"}
        return FileResponse(asset.path, media_type=asset.media_type, headers=headers)


class Docs:
    """Serves the documentation. It is public: it contains nothing about an installation."""

    def __init__(self, folder: Path = DOCS_FOLDER) -> None:
        self._files = StaticFiles(directory=folder, html=True, check_dir=False)

    async def serve(self, request: Request) -> Response:
        """GET docs/PATH. Raises NotFound."""
        path = request.path_params.get("path")
        if path is None:
            return RedirectResponse(DOCS_PATH)
        try:
            if any(part.startswith(".") for part in path.split("/")):
                raise HTTPException(404)
            response = await self._files.get_response(path or ".", request.scope)
        except HTTPException as error:
            raise NotFound(
                f"Page not found in the documentation: {path}. Search at {DOCS_PATH}.",
                code="page-not-found",
            ) from error
        # The generator gives each style and script a digest, as `?v=` or in its name.
        is_versioned = "v" in request.query_params or "digest" in request.query_params or path.startswith("_inline/")
        response.headers["Cache-Control"] = _FOREVER if is_versioned else "no-cache"
        return response


def _asset(path: Path) -> Asset:
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(path, media_type, sha256(path.read_bytes()).hexdigest()[:12])
