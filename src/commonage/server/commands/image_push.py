"""`commonage image push`: pushes an image of this machine to the registry, and adds it to the catalogue."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import httpx2

from commonage.cli.connection import Server, calls_server, connect
from commonage.domain.images import ImageName, parse_image_name
from commonage.domain.requests import parse_memory
from commonage.images import buildah
from commonage.images.buildah import ImageError
from commonage.images.builder import local_name
from commonage.images.contents import ImageContents, inspect_image, provenance
from commonage.server.commands.common import as_json
from commonage.server.commands.image_common import Access, Steps, isolation_option, registry_access
from commonage.wire.hub import API_PATH
from commonage.wire.images import ImageIn, ImageOut, KernelIn, ProvenanceIn, SourceFileIn

_MAX_FILES = 200
_MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


@click.command
@click.argument("name", metavar="TENANT/NAME[:TAG]")
@click.option("--from", "source", metavar="IMAGE", help="Image on this machine.  [default: the result of build]")
@click.option("--title", default="", metavar="TEXT", help="Title in the catalogue.")
@click.option("--description", default="", metavar="TEXT", help="Description in the catalogue.")
@click.option("--needs-gpu", is_flag=True, help="The image needs a GPU.")
@click.option("--vram", metavar="MEM", help="Minimum VRAM: 6GiB; a plain number is MiB.")
@isolation_option
@click.option("-v", "--verbose", is_flag=True, help="Show every line of the push.")
@as_json
@calls_server
def push(server: Server, name: str, source: str | None, as_json: bool, **options: Any) -> None:
    """Push an image to the registry, and offer it to the members of its tenant.

    Workloads run the image by digest. A new push of the same name does not change running workloads.

    \b
    Examples:
      commonage image push lab/torch
      commonage image push public/cuda --from localhost/mine:2 --needs-gpu
    """
    steps = Steps(options["verbose"])
    with steps.reported():
        wanted = parse_image_name(name)
        made = push_image(server, wanted, source or local_name(wanted), options, steps)
    if as_json:
        click.echo(made.model_dump_json(indent=2))
        return
    click.echo(made.reference)
    click.echo(f"Run in it with: commonage run --env {made.environments[0]} …", err=True)


def push_image(server: Server, name: ImageName, image: str, options: dict[str, Any], steps: Steps) -> ImageOut:
    if not buildah.exists(image):
        raise ImageError(
            f"no image {image} on this machine. Build it with `commonage image build -t {name}`, or name another "
            "one with --from. `buildah images` lists all."
        )
    with registry_access(server, name) as access:
        with steps.step("inspecting the image"):
            found = inspect_image(image, options["isolation"])
        with steps.step(f"pushing to {access.address}"), tempfile.TemporaryDirectory() as folder:
            target = f"{access.address}/{name.tagged}"
            digest = buildah.push(image, target, access.options, Path(folder), steps.detail)
        reference = f"{access.address}/{name.repository}@{digest}"
        with steps.step("adding it to the catalogue"):
            entry = described(name, reference, found, options, _size(server, access, name, digest))
            with connect(server) as client:
                return client.register_image(entry)


def described(
    name: ImageName, reference: str, found: ImageContents, options: dict[str, Any], size_bytes: int | None
) -> ImageIn:
    known = provenance(found.labels, found.annotations)
    return ImageIn(
        name=str(name),
        reference=reference,
        title=options["title"],
        description=options["description"],
        size_bytes=size_bytes,
        kinds=["job", "service"] if found.server_prefix is None else ["session", "job", "service"],
        kernels=[KernelIn.model_validate(one, from_attributes=True) for one in found.kernels],
        apps=list(found.apps),
        server_prefix=found.server_prefix or "",
        path=found.path,
        needs_gpu=options["needs_gpu"],
        vram_mib=None if options["vram"] is None else parse_memory(options["vram"], field="--vram"),
        provenance=ProvenanceIn(
            at=known.at,
            builder=known.builder,
            base=known.base,
            base_digest=known.base_digest or None,
            files=[SourceFileIn(path=one.path, digest=one.digest) for one in known.files[:_MAX_FILES]],
            commit=known.commit,
            dirty=known.dirty,
        ),
    )


def _size(server: Server, access: Access, name: ImageName, digest: str) -> int | None:
    """The compressed size of the layers; None if the registry does not report it."""
    context = ssl.create_default_context(cadata=access.certificate)
    scope = {"scope": f"repository:{name.repository}:pull"}
    try:
        with httpx2.Client(verify=context, timeout=10) as client:
            known = {"Authorization": f"token {server.token}"}
            token = client.get(f"{server.url}{API_PATH}/registry/token", params=scope, headers=known).json()["token"]
            answer = client.get(
                f"https://{access.address}/v2/{name.repository}/manifests/{digest}",
                headers={"Authorization": f"Bearer {token}", "Accept": _MANIFESTS},
            )
            layers: Sequence[dict[str, Any]] = answer.json()["layers"]
            return sum(int(layer["size"]) for layer in layers)
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return None
