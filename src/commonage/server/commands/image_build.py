"""`commonage image build`: builds an image on this machine, from requirements or a Containerfile, with buildah."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from commonage.cli.connection import Server, calls_server
from commonage.domain.images import ImageName, parse_image_name
from commonage.engines.process.uv import Progress
from commonage.files.kernels import DEFAULT_KERNEL
from commonage.images.base import DEBIAN, debian_base, debian_suites, own_suite
from commonage.images.builder import BuildTools, ListBuild, build_file, build_lists
from commonage.images.package_sources import has_packages, package_sources
from commonage.images.recipe import check_kernel, check_package, step_title
from commonage.server.commands.common import Failure
from commonage.server.commands.image_common import Steps, isolation_option, registry_access

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_DEFAULT_FILES = ("Containerfile", "Dockerfile")


@click.command
@click.option("-t", "--tag", "name", required=True, metavar="TENANT/NAME[:TAG]", help="Name of the image.")
@click.option(
    "-r",
    "--requirements",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Requirements of the default kernel. Repeatable.",
)
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="NAME=FILE",
    help="An additional kernel with its own packages. Repeatable.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Build from this Containerfile instead of requirements.",
)
@click.option("--base", metavar="IMAGE", default=DEBIAN, show_default=True, help="Base image. `debian` is built here.")
@click.option("--suite", metavar="NAME", help="Debian release, like bookworm.  [default: that of this machine]")
@click.option("--mirror", metavar="URL", help="Debian mirror.  [default: that of this machine]")
@click.option("--apt", "packages", multiple=True, metavar="PACKAGE", help="Additional Debian package. Repeatable.")
@click.option(
    "--wheels",
    type=_FOLDER,
    multiple=True,
    metavar="DIR",
    help="Take Python packages only from this folder, without a network. Repeatable.",
)
@click.option("--no-server", is_flag=True, help="Only for jobs and services: leave out the Jupyter server.")
@click.option("--again", is_flag=True, help="Rebuild everything, the Debian base included.")
@isolation_option
@click.option("-v", "--verbose", is_flag=True, help="Show every line of the build.")
@click.argument("context", type=_FOLDER, required=False)
@calls_server
def build(server: Server, name: str, context: Path | None, **options: Any) -> None:
    """Build an image on this machine. CONTEXT is the folder from which a Containerfile copies files.

    Packages come from the indexes that pip and uv use on this machine. This configuration is not stored in the image.

    \b
    Examples:
      commonage image build -t lab/torch -r requirements.txt
      commonage image build -t lab/both --kernel torch=torch.txt --kernel jax=jax.txt
      commonage image build -t lab/special -f Containerfile .
    """
    steps = Steps(options["verbose"])
    with steps.reported():
        image = _build(parse_image_name(name), context, options, server, steps)
    steps.done()
    click.echo(image)
    click.echo(f"Push it with: commonage image push {name}", err=True)


def _build(name: ImageName, context: Path | None, options: Mapping[str, Any], server: Server, steps: Steps) -> str:
    kernels = _kernels(options["requirements"], options["kernels"])
    if (options["file"] is None) == (not kernels):
        files = (
            [context / one for one in _DEFAULT_FILES if (context / one).is_file()] if context and not kernels else []
        )
        hint = f" {context} has one: -f {files[0]}" if files else ""
        raise Failure(f"nothing to build from. Give requirements (-r or --kernel), or a Containerfile (-f).{hint}")
    if options["file"] is not None:
        _check_file(options["file"], options)
    empty = next((one for one in options["wheels"] if not has_packages(one)), None)
    if empty is not None:
        raise Failure(f"no package in {empty}. --wheels takes a folder with .whl or .tar.gz files.")
    sources = package_sources(os.environ, options["wheels"])
    line = Lines(steps)
    with registry_access(server, name, needed=False) as access:
        tools = BuildTools(options["isolation"], sources, access.options, options["again"])
        if options["file"] is not None:
            for suite in debian_suites(options["file"].read_text(encoding="utf-8", errors="replace")):
                _debian(suite, options, steps, line)
            return build_file(name, options["file"], context or options["file"].absolute().parent, tools, line)
        base = _base(options, steps, line)
        packages = tuple(check_package(one) for one in options["packages"])
        wanted = ListBuild(base, kernels, not options["no_server"], packages, bool(options["wheels"]))
        return build_lists(name, wanted, tools, line)


def _base(options: Mapping[str, Any], steps: Steps, line: Lines) -> str:
    if options["base"] != DEBIAN:
        return str(options["base"])
    return _debian(options["suite"] or own_suite(), options, steps, line)


def _debian(suite: str, options: Mapping[str, Any], steps: Steps, line: Lines) -> str:
    steps.begin(f"Debian {suite}")
    return debian_base(suite, options["mirror"], options["again"], line)


def _check_file(file: Path, options: Mapping[str, Any]) -> None:
    """Raise Failure if it is not a file, or if an option would have no effect with a Containerfile."""
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "does not exist"
        raise Failure(f"{file.absolute()} {problem}. -f takes a Containerfile.")
    given = {"--suite": options["suite"], "--apt": options["packages"], "--no-server": options["no_server"]}
    given["--base"] = options["base"] != DEBIAN
    idle = [name for name, value in given.items() if value]
    if idle:
        raise Failure(f"{' and '.join(idle)} has no effect with a Containerfile. Change {file} instead.")


def _kernels(requirements: Sequence[Path], named: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {DEFAULT_KERNEL: tuple(requirements)} if requirements else {}
    for one in named:
        name, equals, files = one.partition("=")
        if not equals or not files:
            raise Failure(f"{one!r} is not a kernel. Write NAME=FILE, like torch=torch.txt.")
        paths = tuple(Path(file) for file in files.split(","))
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise Failure(f"the requirements {missing} of the kernel {name} do not exist")
        found[check_kernel(name)] = (*found.get(name, ()), *paths)
    return found


class Lines:
    """Turns the output of buildah, uv and debootstrap into steps and details."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._uv = Progress(lambda words, _: steps.detail(words))

    def __call__(self, text: str) -> None:
        title = step_title(text)
        if title is not None:
            self._steps.begin(title)
        elif text.startswith("I: "):
            self._steps.detail(text.removeprefix("I: "))
        else:
            self._uv.line(text)
            self._steps.detail(text)
