"""Routes of images: register, show, pull and remove images of the catalogue."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.fill import fill
from commonage.api.routing import BODY, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.control.catalogue.images import ImageView
from commonage.domain.images import USUAL_PATH, Image, Kernel, Package, Provenance, SourceFile, environments_of
from commonage.domain.permissions import Permission
from commonage.domain.workloads import Kind
from commonage.wire.images import (
    ImageIn,
    ImageList,
    ImageNameIn,
    ImageNameOut,
    ImageOnNodeOut,
    ImageOut,
    KernelIn,
    KernelOut,
    PrepullIn,
    RemovedOut,
)

router = APIRouter(route_class=Guarded, tags=["images"])

_NAME_PROBLEMS = ("invalid-image", "unknown-tenant", "not-a-member", "not-admin", "not-yours", "conflict")
_EXAMPLE = {
    "name": "lab/torch:2.4",
    "reference": "registry.lab.example:5000/lab/torch@sha256:" + "4b" * 32,
    "title": "PyTorch 2.4",
    "kernels": [{"name": "torch", "title": "PyTorch", "prefix": "/opt/commonage/kernels/torch"}],
    "server_prefix": "/opt/commonage/server",
    "vram_mib": 4096,
    "provenance": {"builder": "buildah 1.28.2", "base": "debian:bookworm"},
}


@router.get("/images", summary="List images", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_images(request: Request) -> ImageList:
    """Public images and those of your tenants, by name; admins see all. Removed images are not listed."""
    views = context(request).control.images.visible(caller(request))
    return ImageList(items=[_image_out(view) for view in views])


@router.post(
    "/images",
    status_code=201,
    summary="Register an image",
    responses={
        **problems(*BODY, "invalid-memory", *_NAME_PROBLEMS),
        201: {"description": "Registered, and durable: workloads can use it now."},
    },
    openapi_extra=body_of(ImageIn, _EXAMPLE),
)
@asks(Permission.SUBMIT)
async def register(request: Request) -> ImageOut:
    """Add a pushed image to the catalogue, and pull it on the nodes.

    It becomes one environment; if it has several kernels, one for sessions and one for each kernel. Members of a tenant
    may register what they pushed to the site's registry under the tenant's name, admins any image. An existing image of
    the same name is replaced: running workloads continue in the old one, new ones start in the new one.
    """
    api, principal = context(request), caller(request)
    body = await read_json(request, ImageIn)
    registry = api.registry.about.address if api.registry is not None else None
    made = await api.control.images.add(principal, parse_image(body), registry)
    return _image_out(made)


@router.post(
    "/images/dry-run",
    summary="Check the name of an image",
    responses=problems(*BODY, *_NAME_PROBLEMS),
    openapi_extra=body_of(ImageNameIn, {"name": "lab/torch:2.4"}),
)
@asks(Permission.SUBMIT)
async def dry_run(request: Request) -> ImageNameOut:
    """Check whether you may register an image under this name, before you build and push it."""
    principal = caller(request)
    body = await read_json(request, ImageNameIn)
    name, tenant, before = context(request).control.images.check_name(principal, body.name)
    return ImageNameOut(name=name, tenant=tenant, replaces=before is not None)


@router.get("/images/{scope}/{name}", summary="Show an image", responses=problems("image-not-found", "invalid-image"))
@asks(Permission.SEE_TENANT)
async def show(request: Request, scope: str, name: str) -> ImageOut:
    """An image with its sources, the nodes that have it, and its workloads. `name` may have a tag: `torch:2.4`."""
    return _image_out(context(request).control.images.one(caller(request), f"{scope}/{name}"))


@router.delete(
    "/images/{scope}/{name}",
    summary="Remove an image from the catalogue",
    responses=problems("image-not-found", "invalid-image", "not-yours"),
)
@asks(Permission.MANAGE_IMAGES)
async def remove(request: Request, scope: str, name: str) -> RemovedOut:
    """Running workloads continue, waiting ones are held until it is registered again, and new ones are refused.

    Allowed for the user who registered it, and for admins. The registry deletes its data some days later.
    """
    gone, waiting = await context(request).control.images.remove(caller(request), f"{scope}/{name}")
    return RemovedOut(image=_image_out(gone), waiting=list(waiting))


@router.post(
    "/images/{scope}/{name}/prepull",
    status_code=202,
    summary="Pull an image on nodes",
    responses={
        **problems(*BODY, "image-not-found", "invalid-image", "node-not-found", "not-yours", "conflict"),
        202: {"description": "In progress; `nodes` of the image shows the progress."},
    },
    openapi_extra=body_of(PrepullIn, {"nodes": ["gpu-1", "gpu-2"]}, required=False),
)
@asks(Permission.MANAGE_IMAGES)
async def prepull(request: Request, scope: str, name: str) -> ImageOut:
    """Pull it in advance on the given nodes, or on all ready nodes.

    Allowed for the user who registered it, and for admins.
    """
    principal = caller(request)
    body = await read_json(request, PrepullIn, optional=True)
    found = await context(request).control.images.prepull(principal, f"{scope}/{name}", body.nodes)
    return _image_out(found)


def _image_out(view: ImageView) -> ImageOut:
    image = view.image
    return fill(
        ImageOut,
        view,
        image,
        kernels=[fill(KernelOut, kernel, environment=_environment_of(kernel, image)) for kernel in image.kernels],
        environments=[one.name for one in environments_of(image)],
        vram_mib=image.min_vram_mib,
        nodes=[fill(ImageOnNodeOut, one) for one in view.nodes],
    )


def _kernel(body: KernelIn) -> Kernel:
    packages = tuple(Package(one.name, one.version) for one in body.packages)
    return Kernel(body.name, body.title or body.name, body.prefix, packages)


def _environment_of(kernel: Kernel, image: Image) -> str:
    return image.name if len(image.kernels) < 2 else f"{image.name}/{kernel.name}"


def parse_image(body: ImageIn) -> Image:
    """The image to register; control fills in its tenant and author."""
    default_kinds = (*((Kind.SESSION,) if body.server_prefix else ()), Kind.JOB, Kind.SERVICE)
    kinds = default_kinds if body.kinds is None else map(Kind, body.kinds)
    made = body.provenance
    return Image(
        name=body.name,
        tenant=None,
        reference=body.reference,
        by="",
        at=0.0,
        title=body.title,
        description=body.description,
        size_bytes=body.size_bytes,
        kinds=tuple(dict.fromkeys(kinds)),
        kernels=tuple(_kernel(one) for one in body.kernels),
        apps=tuple(dict.fromkeys(body.apps)),
        server_prefix=body.server_prefix,
        path=body.path or USUAL_PATH,
        variables=tuple(body.variables.items()),
        needs_gpu=body.needs_gpu,
        min_vram_mib=body.vram_mib or 0,
        provenance=Provenance(
            at=made.at,
            builder=made.builder,
            base=made.base,
            base_digest=made.base_digest or "",
            files=tuple(SourceFile(one.path, one.digest) for one in made.files),
            commit=made.commit,
            dirty=made.dirty,
        ),
    )
