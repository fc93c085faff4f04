"""Routes of files in homes and volumes: list, download in ranges, upload in parts, create folders, move, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from commonage.api.fill import fill, optional_reason
from commonage.api.routing import BODY, QUERY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.api.streams import HeldResponse, Hold
from commonage.control.downloads import MEDIA_TYPE, Download
from commonage.control.files import MAX_UPLOAD_BYTES, PlaceView, Where
from commonage.control.request_limits import Connection
from commonage.control.uploads import SentPart, receive_part
from commonage.domain.files import join, parse_path
from commonage.domain.permissions import Permission
from commonage.wire.files import (
    FileChangedOut,
    FileList,
    FileOut,
    FilePlaceList,
    FilePlaceOut,
    FolderIn,
    MoveIn,
    UploadOut,
    UploadQuery,
    WhereQuery,
)

router = APIRouter(route_class=Guarded, tags=["files"])
CONTENT_PATH = "/files/content"
_OF_A_PLACE = (
    "file-not-found", "volume-not-found", "files-not-here", "invalid-path", "which-tenant", "conflict",
)  # fmt: skip
_OF_A_CHANGE = (*_OF_A_PLACE, "volume-read-only", "file-exists", "storage-full")
_OF_AN_UPLOAD = (*_OF_A_CHANGE, "upload-busy", "upload-offset", "upload-mismatch", "too-many-uploads")
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_COUNTS = [
    {
        "name": name,
        "in": "header",
        "required": True,
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_UPLOAD_BYTES},
    }
    for name in ("Upload-Offset", "Upload-Length")
]


@router.get("/files/places", summary="List homes and volumes with files", responses=problems())
@asks(Permission.SUBMIT)
async def list_places(request: Request) -> FilePlaceList:
    """Your home and the volumes that your workloads may mount, with the space that they use."""
    found = context(request).control.files.places(caller(request))
    return FilePlaceList(items=[_place(one) for one in found])


@router.get("/files", summary="List a folder", responses=problems(*QUERY, *_OF_A_PLACE))
@asks(Permission.SUBMIT)
async def list_folder(request: Request, query: Annotated[WhereQuery, Query()]) -> FileList:
    """Links are shown, and not followed."""
    view, listing = await context(request).control.files.list(caller(request), _where(query))
    items = [fill(FileOut, one) for one in listing.entries]
    return FileList(place=_place(view), path=join(parse_path(query.path)), items=items, left_out=listing.left_out)


@router.get(
    CONTENT_PATH,
    summary="Download a file",
    response_class=Response,
    responses={
        **problems(*QUERY, *_OF_A_PLACE, "range-invalid", "too-many-streams"),
        200: {"content": {"application/octet-stream": _BINARY}},
        206: {"description": "The bytes of the header `Range`.", "content": {"application/octet-stream": _BINARY}},
    },
)
@asks(Permission.SUBMIT)
async def download(request: Request, query: Annotated[WhereQuery, Query()]) -> Response:
    """With `Range: bytes=FIRST-` a broken download continues. With `If-Range`, a changed file is sent whole."""
    api, principal = context(request), caller(request)
    headers = request.headers
    found = await api.control.files.download(principal, _where(query), headers.get("range"), headers.get("if-range"))
    return _FileResponse(found, api.hold(Connection.STREAM, request, principal))


@router.patch(
    CONTENT_PATH,
    summary="Upload a part of a file",
    responses=problems(*QUERY, *_OF_AN_UPLOAD),
    openapi_extra={
        "parameters": _COUNTS,
        "requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}},
    },
)
@asks(Permission.SUBMIT)
async def upload(request: Request, query: Annotated[UploadQuery, Query()]) -> UploadOut:
    """Append the body at `Upload-Offset`. With `Upload-Length` bytes it becomes the file at `path`, which is complete.

    Parts may have any size. After a broken connection get the offset from `/files/uploads`, and continue from there;
    what was received is kept. Offset 0 discards it.
    """
    sent = SentPart(query.key, request.headers, request.stream(), ClientDisconnect, query.replace)
    return fill(UploadOut, await receive_part(context(request).control.files, caller(request), _where(query), sent))


@router.get(
    "/files/uploads", summary="Show an unfinished upload", responses=problems(*QUERY, *_OF_A_PLACE, "volume-read-only")
)
@asks(Permission.SUBMIT)
async def uploaded(request: Request, query: Annotated[UploadQuery, Query()]) -> UploadOut:
    """The offset at which it continues; 0 if nothing was received, or if it is complete."""
    offset = await context(request).control.files.uploaded(caller(request), _where(query), query.key)
    return UploadOut(offset=offset, complete=False)


@router.post(
    "/files/folders",
    status_code=201,
    summary="Create a folder",
    responses=problems(*BODY, *_OF_A_CHANGE),
    openapi_extra=body_of(FolderIn, {"path": "results/may"}),
)
@asks(Permission.SUBMIT)
async def make_folder(request: Request) -> FileChangedOut:
    """The folder above must exist, and the new one must not."""
    body = await read_json(request, FolderIn)
    await context(request).control.files.make_folder(caller(request), _where(body))
    return _changed(body.path)


@router.post(
    "/files/move",
    summary="Rename or move a file or folder",
    responses=problems(*BODY, *_OF_A_CHANGE),
    openapi_extra=body_of(MoveIn, {"path": "results/may", "to": "results/june"}),
)
@asks(Permission.SUBMIT)
async def move(request: Request) -> FileChangedOut:
    """Within one home or volume. Nothing is replaced."""
    body = await read_json(request, MoveIn)
    await context(request).control.files.move(caller(request), _where(body), body.to)
    return _changed(body.to)


@router.delete("/files", summary="Delete a file or folder", responses=problems(*QUERY, *_OF_A_CHANGE))
@asks(Permission.SUBMIT)
async def remove(request: Request, query: Annotated[WhereQuery, Query()]) -> FileChangedOut:
    """A folder with its content, for good. Links are deleted, not their targets."""
    await context(request).control.files.remove(caller(request), _where(query))
    return _changed(query.path)


def _where(query: WhereQuery) -> Where:
    return Where(query.path, query.volume, query.tenant)


def _place(view: PlaceView) -> FilePlaceOut:
    return fill(FilePlaceOut, view, gap=optional_reason(view.gap))


def _changed(path: str) -> FileChangedOut:
    return FileChangedOut(path=join(parse_path(path)))


class _FileResponse(HeldResponse):
    def __init__(self, download: Download, hold: Hold) -> None:
        super().__init__(
            download.chunks(), hold, media_type=MEDIA_TYPE, headers=download.headers, status=download.status
        )
        self._file = download.file

    async def _release(self) -> None:
        await super()._release()
        await self._file.close()  # also if no chunk was read
