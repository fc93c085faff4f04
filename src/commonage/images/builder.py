"""Builds an image on this machine: from lists of requirements, or from a Containerfile. For `commonage image`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from uv import find_uv_bin

from commonage.catalogue import builtin_environments
from commonage.domain.images import ImageName, SourceFile, left_out
from commonage.files.kernels import BUILD_CONSTRAINTS, kernel_spec, packages_script, server_settings, start_script
from commonage.images import buildah, recipe
from commonage.images.buildah import BuildahFailed, BuildRequest, ImageError, Line, failure_message
from commonage.images.contents import commit_of, context_files, digest_of, labels, source_file
from commonage.images.package_sources import PackageSources
from commonage.images.recipe import Kernel, Recipe

_SERVER_PACKAGES = ("jupyterhub", "jupyterlab")


@dataclass(frozen=True, slots=True)
class BuildTools:
    """How to build: buildah's isolation, the sources of packages, and `access`: buildah's options for registries.

    `again`: no layer of an earlier build is used.
    """

    isolation: str
    sources: PackageSources
    access: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True, slots=True)
class ListBuild:
    """A build from lists: the requirements files of each kernel, and whether sessions run in the image.

    `server_packages` are added to the server of sessions; `files` are texts by their path in the image.
    """

    base: str
    kernels: Mapping[str, Sequence[Path]]
    server: bool = True
    packages: tuple[str, ...] = ()
    offline: bool = field(default=False)
    server_packages: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def local_name(name: ImageName) -> str:
    return f"localhost/{name.tagged}"


def build_lists(name: ImageName, wanted: ListBuild, tools: BuildTools, line: Line) -> str:
    """Build from lists of requirements. Returns the image's name on this machine. Raises ImageError, RecipeError."""
    with tempfile.TemporaryDirectory(prefix="commonage-build-") as made:
        folder = Path(made)
        _put_uv(folder)
        (folder / "building.txt").write_text(BUILD_CONSTRAINTS, encoding="utf-8")
        (folder / "packages.py").write_text(packages_script(), encoding="utf-8")
        files = [one for paths in wanted.kernels.values() for path in paths for one in _checked(path)]
        kernels = tuple(_put_kernel(folder, kernel, paths) for kernel, paths in wanted.kernels.items())
        server = _put_server(folder, wanted, kernels) if wanted.server else ""
        texts = _put_files(folder / "files", wanted.files)
        steps = Recipe(
            wanted.base, kernels, server, wanted.packages, tools.sources.places, wanted.offline,
            tuple(wanted.files), texts,
        )  # fmt: skip
        (folder / "Containerfile").write_text(recipe.containerfile(steps), encoding="utf-8")
        home = next(iter(paths[0] for paths in wanted.kernels.values() if paths), Path()).absolute().parent
        with _with_advice():
            return _build(name, folder / "Containerfile", folder, _labels(home, files), tools, line)


def build_file(name: ImageName, file: Path, context: Path, tools: BuildTools, line: Line) -> str:
    """Build from a Containerfile and the folder it takes files from. Returns and raises as `build_lists`."""
    inside = file.absolute().is_relative_to(context.absolute())
    try:
        files = context_files(context) if inside else [source_file(file), *context_files(context)]
    except OSError as error:
        raise ImageError(
            f"Cannot read {error.filename}: {error.strerror}. The build records the digests of all files in {context}. "
            "Move the file, or give a smaller folder after the Containerfile."
        ) from error
    with _with_advice(str(file), str(context)):
        return _build(name, file, context, _labels(context.absolute(), files), tools, line)


def _labels(home: Path, files: Sequence[SourceFile]) -> dict[str, str]:
    return labels(buildah.version(), time.time(), files, commit_of(home))


def _build(
    name: ImageName, file: Path, context: Path, image_labels: Mapping[str, str], tools: BuildTools, line: Line
) -> str:
    image = local_name(name)
    with secrets_of(tools.sources) as secrets:
        arguments = ["bud", "--isolation", tools.isolation, "--pull=false", "--force-rm", "--format", "oci"]
        arguments += ["--no-cache"] if tools.again else ["--layers"]
        arguments += ["--tag", image, *tools.access, *secrets]
        for number, place in enumerate(tools.sources.places):
            arguments += ["--build-context", f"place{number}={place}"]
        for key, value in image_labels.items():
            arguments += ["--label", f"{key}={value}"]
        buildah.follow([*arguments, "--file", str(file), str(context)], line)
    return image


@contextmanager
def _with_advice(file: str = "", context: str = "") -> Iterator[None]:
    """Turn a failed build into an error that names the step and the next action."""
    try:
        yield
    except BuildahFailed as error:
        raise ImageError(failure_message(error.lines, BuildRequest(file, context))) from error


@contextmanager
def secrets_of(sources: PackageSources) -> Iterator[list[str]]:
    """buildah's options for the secrets of a build: `uv`, `pip` and `ca`. Their files are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="commonage-secrets-") as made:
        options = []
        contents = {
            "uv": recipe.uv_settings(dict(sources.variables)),
            "pip": sources.pip_conf,
            "ca": sources.certificates,
        }
        for name, content in contents.items():
            path = Path(made) / name
            path.write_text(content, encoding="utf-8")
            options += ["--secret", f"id={name},src={path}"]
        yield options


def _put_uv(folder: Path) -> None:
    """Put uv, the installer, into the folder: as a hard link if possible, because it is large."""
    source, target = Path(find_uv_bin()).resolve(), folder / "uv"
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def _checked(path: Path) -> list[SourceFile]:
    try:
        return [source_file(path)]
    except OSError as error:
        raise ImageError(f"Cannot read the list of requirements {path}: {error.strerror}.") from error


def _put_kernel(folder: Path, name: str, paths: Sequence[Path]) -> Kernel:
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths) + "\n"
    prefix = f"{recipe.KERNELS}/{recipe.check_kernel(name)}"
    ours = kernel_spec(name, prefix) + start_script(name, prefix) + packages_script()
    kernel = Kernel(name, digest_of((text + ours).encode()))
    files = {"txt": text, "json": kernel_spec(name, prefix), "sh": start_script(name, prefix)}
    for ending, content in files.items():
        (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    return kernel


def _put_files(folder: Path, files: Mapping[str, str]) -> str:
    """Put the texts into the folder by their number; return their digest."""
    folder.mkdir()
    for number, text in enumerate(files.values()):
        (folder / str(number)).write_text(text, encoding="utf-8")
    return digest_of("\0".join((*files, *files.values())).encode())


def _put_server(folder: Path, wanted: ListBuild, kernels: Sequence[Kernel]) -> str:
    """The requirements of a session's server: pinned as in the built-in catalogue, or from a folder of wheels."""
    pinned = next(one.requirements for one in builtin_environments() if one.name == "notebook")
    place = folder / "server"
    place.mkdir()
    # The hub and the server must be compatible, so a folder of wheels may not choose the server's version.
    hub = next(one for one in pinned if one.startswith("jupyterhub==")).split()[0]
    requested = "\n".join(
        [hub if name == "jupyterhub" else name for name in (*_SERVER_PACKAGES, *wanted.server_packages)]
    )
    requested += "\n"
    constraints = "" if wanted.offline else "\n".join(one.replace(" \\", "") for one in pinned) + "\n"
    (place / "requirements.txt").write_text(requested, encoding="utf-8")
    (place / "constraints.txt").write_text(constraints, encoding="utf-8")
    within = f"{recipe.WORK}/server"
    (place / "left-out.txt").write_text(left_out(_SERVER_PACKAGES), encoding="utf-8")
    (place / "arguments").write_text(f"-c {within}/constraints.txt --override {within}/left-out.txt", encoding="utf-8")
    settings = server_settings([one.name for one in kernels])
    (place / "settings.json").write_text(settings, encoding="utf-8")
    return digest_of((requested + constraints + left_out(_SERVER_PACKAGES) + settings).encode())
