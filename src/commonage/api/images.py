"""Routes of images: what was pushed, made from what, and where it lies ready."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import decode_images as decode
from commonage.api import encode_images as encode
from commonage.api.routing import Guarded, answer, body_of, caller, context, problems, read_json
from commonage.domain.principals import Scope
from commonage.wire.images import ImageIn, ImageList, ImageNameIn, ImageNameOut, ImageOut, PrepullIn, RemovedOut

router = APIRouter(route_class=Guarded, tags=["images"])

_BODY = ("invalid-json", "invalid-encoding", "unsupported-media-type", "too-large", "unknown-field", "invalid-input")
_EXAMPLE = {
    "name": "lab/torch:2.4",
    "reference": "registry.lab.example:5000/lab/torch@sha256:" + "4b" * 32,
    "title": "PyTorch 2.4",
    "kernels": [{"name": "torch", "title": "PyTorch", "prefix": "/opt/commonage/kernels/torch"}],
    "server_prefix": "/opt/commonage/server",
    "vram_mib": 4096,
    "provenance": {"builder": "buildah 1.28.2", "base": "debian:bookworm"},
}
_PREPULL_EXAMPLE = {"nodes": ["gpu-1", "gpu-2"]}


@router.get("/images", summary="The images that work can run in", response_model=ImageList, responses=problems())
async def list_images(request: Request) -> Response:
    """Everybody's, and those of your tenants, by name; for admins all. Those that were removed are left out."""
    found = context(request).control.images.visible(caller(request))
    return answer(ImageList(items=[encode.image(one) for one in found]))


@router.post(
    "/images",
    status_code=201,
    summary="Register an image that was pushed",
    response_model=ImageOut,
    responses={
        **problems(
            *_BODY, "invalid-image", "invalid-memory", "unknown-tenant", "not-a-member", "not-admin", "not-yours",
            "conflict",
        ),
        201: {"description": "Registered, and durable: work can run in it at once."},
    },
    openapi_extra=body_of(ImageIn, _EXAMPLE),
)  # fmt: skip
async def register(request: Request) -> Response:
    """Offered as one environment, or where it has several kernels as one for sessions and one for each kernel.

    Members of a tenant register what they pushed to the site's registry under the tenant's name; admins any image. It
    is then brought to the nodes. Under a name that is there it takes the other's place: what runs goes on, what
    starts from now on starts in the new one.
    """
    stands, who = context(request), caller(request)
    who.need(Scope.SUBMIT)
    ask = await read_json(request, ImageIn)
    registry = stands.registry.about.address if stands.registry is not None else None
    made = await stands.control.images.add(who, decode.image(ask), registry)
    return answer(encode.image(made), 201)


@router.post(
    "/images/dry-run",
    summary="Whether an image may be pushed under a name",
    response_model=ImageNameOut,
    responses=problems(*_BODY, "invalid-image", "unknown-tenant", "not-a-member", "not-admin", "not-yours", "conflict"),
    openapi_extra=body_of(ImageNameIn, {"name": "lab/torch:2.4"}),
)
async def dry_run(request: Request) -> Response:
    """The same answer about its name as who registers it would get; asked before an image is built and pushed."""
    who = caller(request)
    ask = await read_json(request, ImageNameIn)
    name, tenant, before = context(request).control.images.check_name(who, ask.name)
    return answer(ImageNameOut(name=name, tenant=tenant, replaces=before is not None))


@router.get(
    "/images/{scope}/{name}",
    summary="One image",
    response_model=ImageOut,
    responses=problems("image-not-found", "invalid-image"),
)
async def show(request: Request, scope: str, name: str) -> Response:
    """With what it was made from, where it lies, and how much work is in it. `name` may have a tag: `torch:2.4`."""
    return answer(encode.image(context(request).control.images.one(caller(request), f"{scope}/{name}")))


@router.delete(
    "/images/{scope}/{name}",
    summary="Remove an image from the catalogue",
    response_model=RemovedOut,
    responses=problems("image-not-found", "invalid-image", "not-yours"),
)
async def remove(request: Request, scope: str, name: str) -> Response:
    """What runs in it goes on; what waits for it is held until it comes back, and new work in it is refused.

    For who registered it, and admins. From the registry it goes some days later.
    """
    gone, waiting = await context(request).control.images.remove(caller(request), f"{scope}/{name}")
    return answer(RemovedOut(image=encode.image(gone), waiting=list(waiting)))


@router.post(
    "/images/{scope}/{name}/prepull",
    status_code=202,
    summary="Bring an image to nodes",
    response_model=ImageOut,
    responses={
        **problems(*_BODY, "image-not-found", "invalid-image", "node-not-found", "not-yours", "conflict"),
        202: {"description": "Under way; `nodes` of the image tells how far."},
    },
    openapi_extra=body_of(PrepullIn, _PREPULL_EXAMPLE, required=False),
)
async def prepull(request: Request, scope: str, name: str) -> Response:
    """To those named, or to all that take work. For who registered it, and admins."""
    who = caller(request)
    who.need(Scope.SUBMIT)
    ask = await read_json(request, PrepullIn, optional=True)
    found = await context(request).control.images.prepull(who, f"{scope}/{name}", ask.nodes)
    return answer(encode.image(found), 202)
