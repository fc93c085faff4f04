"""Data: the files of the home and of volumes. Browse, upload in pieces, download, create folders, rename, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.downloads import MEDIA_TYPE
from commonage.control.files import Where
from commonage.control.uploads import SentPart, receive_part
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.files import Entry, Listing, join, parse_path
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text

_PATH = "/data"


def routes(site: Site) -> list[Route]:
    """GET data, its content and the offset of an upload; PATCH its content; POST data/folder, move, remove."""
    page = _Page(site)
    return [
        Route(_PATH, site.page(page.show), methods=["GET"]),
        Route(f"{_PATH}/content", site.page(page.download), methods=["GET"]),
        Route(f"{_PATH}/content", site.page(page.upload), methods=["PATCH"]),
        Route(f"{_PATH}/upload", site.page(page.uploaded), methods=["GET"]),
        Route(f"{_PATH}/folder", site.page(page.make_folder), methods=["POST"]),
        Route(f"{_PATH}/move", site.page(page.move), methods=["POST"]),
        Route(f"{_PATH}/remove", site.page(page.remove), methods=["POST"]),
    ]


class _Page:
    def __init__(self, site: Site) -> None:
        self._site, self._files = site, site.control.files

    async def show(self, request: Request, visitor: Visitor) -> Response:
        where, places = _where(request.query_params), self._files.places(visitor.principal)
        refused: CommonageError | None = None
        place = next((one for one in places if one.volume == where.volume and where.tenant in (None, one.tenant)), None)
        try:
            place, listing = await self._files.list(visitor.principal, where)
            parts = parse_path(where.path)
        except CommonageError as error:
            if place is None:
                raise
            refused, listing, parts = error, Listing(), ()
        crumbs = [(name, self._address(where, join(parts[: at + 1]))) for at, name in enumerate(parts)]
        values = {
            "section": "data",
            "places": [(one, self._address(Where("", one.volume, one.tenant or None))) for one in places],
            "place": place,
            "where": where,
            "path": join(parts),
            "crumbs": crumbs,
            "top": self._address(where),
            "rows": [self._row(where, join(parts), one) for one in listing.entries],
            "left_out": listing.left_out,
            "refused": None if refused is None else messages.of_error(refused),
        }
        return self._site.render(request, visitor, "data.html", values)

    async def download(self, request: Request, visitor: Visitor) -> Response:
        where, headers = _where(request.query_params), request.headers
        found = await self._files.download(
            visitor.principal, where, headers.get("range"), headers.get("if-range")
        )  # fmt: skip
        return self._site.stream(
            request, visitor, found.chunks(), media_type=MEDIA_TYPE, headers=found.headers, status=found.status
        )

    async def upload(self, request: Request, visitor: Visitor) -> Response:
        query = request.query_params
        try:
            replace = query.get("replace") == "true"
            sent = SentPart(query.get("key", ""), request.headers, request.stream(), ClientDisconnect, replace)
            done = await receive_part(self._files, visitor.principal, _where(query), sent)
        except CommonageError as error:
            return _failure(error)
        return JSONResponse(asdict(done))

    async def uploaded(self, request: Request, visitor: Visitor) -> Response:
        query = request.query_params
        try:
            offset = await self._files.uploaded(visitor.principal, _where(query), query.get("key", ""))
        except CommonageError as error:
            return _failure(error)
        return JSONResponse({"offset": offset})

    async def make_folder(self, request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        where, name = _where(form), form_text(form, "name")
        await self._files.make_folder(
            visitor.principal, Where(f"{where.path}/{_plain(name)}", where.volume, where.tenant)
        )
        return self._back(where, where.path)

    async def move(self, request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        where, name = _where(form), form_text(form, "name")
        above = join(parse_path(where.path)[:-1])
        await self._files.move(visitor.principal, where, f"{above}/{_plain(name)}")
        return self._back(where, above)

    async def remove(self, request: Request, visitor: Visitor) -> Response:
        where = _where(await request.form())
        await self._files.remove(visitor.principal, where)
        return self._back(where, join(parse_path(where.path)[:-1]))

    def _row(self, where: Where, path: str, entry: Entry) -> Mapping[str, object]:
        below = f"{path}/{entry.name}".lstrip("/")
        return {"entry": entry, "path": below, "address": self._address(where, below, entry.kind == "file")}

    def _address(self, where: Where, path: str = "", is_file: bool = False) -> str:
        given = {"volume": where.volume, "tenant": where.tenant or "", "path": path}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"{HOME}data{'/content' if is_file else ''}{f'?{query}' if query else ''}"

    def _back(self, where: Where, path: str) -> Response:
        return RedirectResponse(self._address(where, path), status_code=303)


def _where(values: Mapping[str, object]) -> Where:
    path, volume, tenant = (values.get(name) for name in ("path", "volume", "tenant"))
    return Where(str(path or ""), str(volume or ""), str(tenant) if tenant else None)


def _plain(name: str) -> str:
    """A new name in a form: not a path."""
    if "/" in name or not name:
        raise InvalidInput(
            "A name must not be empty or have a slash. Enter another name.", field="name", code="invalid-path"
        )
    return name


def _failure(error: CommonageError) -> Response:
    return JSONResponse(
        {"code": error.problem_code, "text": messages.of_error(error), "retryable": error.is_retryable}, error.status
    )
