"""`commonage environment build`: a shipped recipe for everybody, or an environment of a tenant."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from commonage.catalogue.recipes import VARIANTS, ShippedRecipe, recipe_names, shipped_recipe
from commonage.cli.connection import Server, calls_server, connect
from commonage.cli.workloads.files import send_files
from commonage.cli.workloads.follow import follow
from commonage.domain.builds import FILES, SourceKind
from commonage.domain.images import parse_image_name
from commonage.domain.requests import parse_memory
from commonage.images.base import debian_base, own_suite
from commonage.images.builder import BuildTools, ListBuild, build_lists
from commonage.images.package_sources import package_sources
from commonage.sdk import Client
from commonage.sdk.errors import ApiError
from commonage.server.commands.common import Failure, as_json
from commonage.server.commands.image_build import Lines
from commonage.server.commands.image_common import Steps, isolation_option
from commonage.server.commands.image_push import push_image
from commonage.wire.environments import EnvironmentBuildIn
from commonage.wire.workloads import SubmitIn

_RECIPES = ", ".join(recipe_names())
_KINDS = ("session", "job", "service")


@click.command
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="Build from a requirements.txt, environment.yml, pyproject.toml or Containerfile, the https:// address of a "
    "git repository with one of them, or image:NAME.",
)
@click.option("--ref", default="", metavar="BRANCH", help="Branch or tag of the git repository.")
@click.option("--title", default="", metavar="TEXT", help="Title in the catalogue.")
@click.option("--description", default="", metavar="TEXT", help="Description in the catalogue.")
@click.option("--cpus", metavar="N", help="CPU cores of the build of a tenant.")
@click.option("--mem", metavar="MEM", help="Memory of the build of a tenant: 4GiB.")
@click.option("-d", "--detach", is_flag=True, help="Print the id of the build and exit, without following it.")
@click.option(
    "--variant", type=click.Choice(VARIANTS), default="cpu", show_default=True, help="Variant of a shipped recipe."
)
@click.option("--image", "as_image", is_flag=True, help="Build a shipped recipe as an image, here, with buildah.")
@click.option("--push", is_flag=True, help="Push the image of a shipped recipe to the registry, for all tenants.")
@click.option("--mirror", metavar="URL", help="Debian mirror for an image.  [default: that of this machine]")
@isolation_option
@click.option("-v", "--verbose", is_flag=True, help="Show every line of the build of an image.")
@as_json
@click.argument("name", metavar="NAME|TENANT/NAME")
@calls_server
def build(server: Server, name: str, **options: Any) -> None:
    """Build an environment of your tenant, or a recipe that comes with Commonage.

    TENANT/NAME is built by a job of the tenant, and the command follows this job. For managers of the tenant. NAME is a
    shipped recipe: minimal, datascience, nbgrader, pytorch, tensorflow, two-kernels, r, desktop. With --image, it is
    built as an image on this machine. Otherwise it is built as a Python environment, for sites with the engine
    `process`. For admins.

    \b
    Examples:
      commonage environment build lab/nlp --from requirements.txt
      commonage environment build lab/course --from https://github.com/lab/course --ref 2026
      commonage environment build datascience
      commonage environment build pytorch --variant cuda --image --push
    """
    if "/" in name:
        _build_for_tenant(server, name, options)
        return
    if options["source"] is not None:
        raise Failure(f"{name!r} names no tenant. Write TENANT/{name} to build from {options['source']}.")
    if name not in recipe_names():
        raise Failure(
            f"there is no recipe {name!r}; there are: {_RECIPES}. An environment of your tenant is TENANT/NAME."
        )
    recipe = shipped_recipe(name, options["variant"])
    if options["as_image"] or options["push"]:
        _build_image(server, recipe, options)
    else:
        _declare(server, recipe)


def _build_for_tenant(server: Server, name: str, options: dict[str, Any]) -> None:
    given = options["source"]
    if given is None:
        raise Failure(f"nothing to build {name} from. Give a file, a git repository or an image with --from.")
    with connect(server, reconnect_timeout_s=120.0) as client:
        wanted: dict[str, Any] = {one: options[one] for one in ("title", "description", "ref", "cpus")}
        if options["mem"] is not None:
            wanted["memory_mib"] = parse_memory(options["mem"], field="--mem")
        made = client.build_environment(EnvironmentBuildIn(name=name, **wanted, **_source(client, given)))
        if options["detach"]:
            click.echo(made.model_dump_json(indent=2) if options["as_json"] else made.id)
            return
        click.echo(made.id, err=True)
        code = follow(client, made)
        if code != 0:
            sys.exit(code)
    click.echo(f"Run in it with: commonage run --env {name} …", err=True)


def _source(client: Client, given: str) -> dict[str, Any]:
    """The fields of the source. The other files in the folder of a Containerfile are sent with it."""
    if given.startswith("image:"):
        return {"source": SourceKind.IMAGE.value, "url": given.removeprefix("image:")}
    if "://" in given:
        return {"source": SourceKind.GIT.value, "url": given}
    path = Path(given)
    if not path.is_file():
        raise Failure(
            f"{given} is no file. --from takes a file, the https:// address of a git repository, or image:NAME."
        )
    kind = FILES.get(path.name) or _kind_by_ending(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{given} cannot be read as text: {error}") from None
    bundle = send_files(client, path.absolute().parent, ()) if kind is SourceKind.CONTAINERFILE else None
    return {"source": kind.value, "text": text, "bundle": bundle}


def _kind_by_ending(path: Path) -> SourceKind:
    kinds = {".yml": SourceKind.ENVIRONMENT, ".yaml": SourceKind.ENVIRONMENT, ".toml": SourceKind.PYPROJECT}
    return kinds.get(path.suffix, SourceKind.REQUIREMENTS)


def _declare(server: Server, recipe: ShippedRecipe) -> None:
    """Declare it as a Python environment for everybody, and have it made by a first job."""
    if recipe.debian:
        raise Failure(
            f"{recipe.name} needs packages of Debian ({', '.join(recipe.debian[:3])}, …), so it is an image only. "
            "Add --image."
        )
    fields = {
        "title": recipe.title,
        "description": recipe.description,
        "kinds": list(_KINDS),
        "kernels": {name: list(lists) for name, lists in recipe.kernels.items()},
        "needs_gpu": recipe.uses_cuda,
    }
    with connect(server, reconnect_timeout_s=120.0) as client:
        if "process" not in client.info().engines:
            raise Failure(
                "this installation runs containers: add --image, and --push to offer the image to all tenants."
            )
        version = _version(client, recipe.name)
        client.put_resource("Environment", recipe.name, fields, version)
        first = SubmitIn(environment=recipe.name, name=f"make {recipe.name}", command=["python", "--version"])
        if recipe.uses_cuda:
            click.echo("Declared. It is made at its first use, because it needs a GPU.", err=True)
            return
        made = client.submit(first).workload
        code = follow(client, made)
        if code != 0:
            sys.exit(code)
    click.echo(f"Run in it with: commonage run --env {recipe.name} …", err=True)


def _version(client: Client, name: str) -> int | None:
    try:
        return client.resource("Environment", name).version
    except ApiError as error:
        if error.code != "resource-not-found":
            raise
        return None


def _build_image(server: Server, recipe: ShippedRecipe, options: dict[str, Any]) -> None:
    name = parse_image_name(f"public/{recipe.name}" + ("" if options["variant"] == "cpu" else f":{options['variant']}"))
    steps = Steps(options["verbose"])
    with steps.reported(), tempfile.TemporaryDirectory(prefix="commonage-recipe-") as made:
        lists = {}
        for kernel, requirements in recipe.kernels.items():
            path = Path(made) / f"{kernel}.txt"
            path.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            lists[kernel] = [path]
        line = Lines(steps)
        steps.begin("Debian")
        base = debian_base(own_suite(), options["mirror"], False, line)
        tools = BuildTools(options["isolation"], package_sources(os.environ, ()))
        wanted = ListBuild(base, lists, packages=recipe.debian, server_packages=recipe.server, files=recipe.files)
        image = build_lists(name, wanted, tools, line)
        steps.done()
        if options["push"]:
            known = {"title": recipe.title, "description": recipe.description, "needs_gpu": recipe.uses_cuda}
            pushed = push_image(server, name, image, {**options, **known, "vram": None}, steps)
            click.echo(pushed.reference)
            return
    click.echo(image)
    click.echo(f"Push it with: commonage image push {name}", err=True)
