"""The documentation, built by docs/build.py. It is public: it contains nothing about an installation."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from commonage.domain.errors import NotFound
from commonage.wire.docs import DOCS_PATH

FOLDER = Path(__file__).parent / "docs_site"
_FOR_EVER = "public, max-age=31536000, immutable"


class Docs:
    """Serves the files of one folder; StaticFiles stays inside it and answers 304 for a file that the browser has."""

    def __init__(self, folder: Path = FOLDER) -> None:
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
                f"The documentation has no page {path}. Search for it at {DOCS_PATH}.",
                code="page-not-found",
            ) from error
        # The generator gives each style and script a digest, as `?v=` or in its name.
        is_versioned = "v" in request.query_params or "digest" in request.query_params or path.startswith("_inline/")
        response.headers["Cache-Control"] = _FOR_EVER if is_versioned else "no-cache"
        return response
