"""From lists of requirements to a Containerfile: the kernels, each in a virtual environment of its own. Pure.

An image has in /opt/commonage/kernels/NAME the packages of each kernel, which may conflict with those of the
others, and in /opt/commonage/server the server of a session. During the build, its files and secrets are at
/run/commonage; neither stays in the image.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from commonage.files.kernels import ADDED, DEFAULT_KERNEL, KERNEL_PACKAGES, START

KERNELS = "/opt/commonage/kernels"
SERVER = "/opt/commonage/server"
SPECS = "/usr/local/share/jupyter/kernels"
WORK = "/run/commonage"
UV_SETTINGS = "/run/commonage-uv.sh"
CERTIFICATES = "/run/commonage-ca.crt"
_CACHE = "/run/commonage-cache"
# Jupyter uses a kernel of this name for the Python that its own server runs on.
_NOT_A_KERNEL = "python"
_KERNEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}", re.ASCII)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}", re.ASCII)


class RecipeError(ValueError):
    """The build is impossible; the message says why."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to make. `digest` is that of its list of requirements: another list is another layer."""

    name: str
    digest: str

    @property
    def prefix(self) -> str:
        """The folder of its virtual environment."""
        return f"{KERNELS}/{self.name}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image to build on `base`. `server` is the digest of the server's list; empty: the image is for jobs only.

    `packages` are Debian's, installed first, then `files`: paths, of which `WORK/files` has the texts by number, and
    `files_digest` their digest. `places` are folders of this machine with packages; `offline`: use no
    other source.
    """

    base: str
    kernels: tuple[Kernel, ...]
    server: str = ""
    packages: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    offline: bool = False
    files: tuple[str, ...] = ()
    files_digest: str = ""


def check_kernel(name: str) -> str:
    """Validate the name of a kernel. Raises RecipeError."""
    if name == _NOT_A_KERNEL:
        raise RecipeError(
            f"Invalid kernel name {name!r}: Jupyter would start its own Python instead. Use {DEFAULT_KERNEL} or a name "
            "for its contents."
        )
    if not _KERNEL.fullmatch(name):
        raise RecipeError(
            f"Invalid kernel name {name[:40]!r}. Use at most 31 lower-case letters, digits, dots and hyphens."
        )
    return name


def check_package(name: str) -> str:
    if not _PACKAGE.fullmatch(name):
        raise RecipeError(f"Invalid name of a Debian package: {name[:40]!r}.")
    return name


def containerfile(recipe: Recipe) -> str:
    """The Containerfile. Each kernel is a layer, so that unchanged kernels are not built again."""
    steps = [f"FROM {recipe.base}", "ENV LANG=C.UTF-8"]
    if recipe.packages:
        steps.append(_packages(recipe.packages))
    if recipe.files:
        steps.append(_files(recipe))
    steps += [_kernel(recipe, one) for one in recipe.kernels]
    if recipe.server:
        steps.append(_server(recipe))
    folders = [f"{one.prefix}/bin" for one in recipe.kernels[:1]] + ([f"{SERVER}/bin"] if recipe.server else [])
    if folders:
        steps.append(f"ENV PATH={':'.join(folders)}:$PATH")
    return "\n".join(steps) + "\n"


def step_title(line: str) -> str | None:
    """The step that a line of buildah (`[1/2] STEP 3/5: RUN …`) begins, in words; None for any other line."""
    found = re.match(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (\w+) ?(.*)", line)
    if found is None:
        return None
    word, rest = found[1], found[2]
    named = re.search(r" # (kernel \S+|server|packages|files)\b", rest)
    if named is not None:
        return named[1]
    return {
        "FROM": f"base {rest.removeprefix('localhost/')}",
        "COPY": f"COPY {rest}"[:60],
        "RUN": f"RUN {re.sub(r'--mount=[^ ]+ ?', '', rest)}"[:60],
    }.get(word)


def _packages(names: Sequence[str]) -> str:
    return (
        "RUN export DEBIAN_FRONTEND=noninteractive && apt-get update -q"
        f" && apt-get install -q -y --no-install-recommends {shlex.join(names)}"
        " && apt-get clean && rm -rf /var/lib/apt/lists/* # packages"
    )


def _files(recipe: Recipe) -> str:
    put = " && ".join(
        f"mkdir -p {shlex.quote(posixpath.dirname(path))} && cat {WORK}/files/{number} > {shlex.quote(path)}"
        for number, path in enumerate(recipe.files)
    )
    return f"RUN {_mounts(recipe)} {put} # files {recipe.files_digest}"


def _kernel(recipe: Recipe, kernel: Kernel) -> str:
    # A folder of wheels need not have pip: users of such an image add no packages.
    ours = KERNEL_PACKAGES[:1] if recipe.offline else KERNEL_PACKAGES
    install = _installed(recipe, kernel.prefix, f"-r {WORK}/{kernel.name}.txt {' '.join(ours)}")
    spec, start = f"{SPECS}/{kernel.name}", f"{kernel.prefix}/{START}"
    put = (
        f"mkdir -p {spec} && cat {WORK}/{kernel.name}.json > {spec}/kernel.json"
        f" && cat {WORK}/{kernel.name}.sh > {start} && chmod 755 {start}"
        f" && cat {WORK}/packages.py > {kernel.prefix}/{ADDED}"
    )
    return f"RUN {_mounts(recipe)} {install} && {put} # kernel {kernel.name} {kernel.digest}"


def _server(recipe: Recipe) -> str:
    install = _installed(recipe, SERVER, f"-r {WORK}/server/requirements.txt $(cat {WORK}/server/arguments)")
    # The server's own Python is no kernel: users install their packages into theirs.
    alone = f"rm -rf {SERVER}/share/jupyter/kernels && mkdir -p {SERVER}/etc/jupyter"
    configure = f"cat {WORK}/server/settings.json > {SERVER}/etc/jupyter/jupyter_server_config.json"
    return f"RUN {_mounts(recipe)} {install} && {alone} && {configure} # server {recipe.server}"


def _installed(recipe: Recipe, prefix: str, what: str) -> str:
    alone = "--no-index " if recipe.offline else ""
    return (
        f". {UV_SETTINGS} && {WORK}/uv venv --quiet --python python3 {prefix}"
        f" && {WORK}/uv pip install --python {prefix}/bin/python --compile-bytecode"
        f" --build-constraints {WORK}/building.txt {alone}{what}"
    )


def _mounts(recipe: Recipe) -> str:
    mounts = [
        f"type=bind,source=.,target={WORK}",
        f"type=secret,id=uv,target={UV_SETTINGS}",
        f"type=secret,id=ca,target={CERTIFICATES}",
        f"type=cache,id=commonage-uv,target={_CACHE}",
        *(f"type=bind,from=place{number},target={place}" for number, place in enumerate(recipe.places)),
    ]
    return " ".join(f"--mount={one}" for one in mounts)


def uv_settings(variables: dict[str, str]) -> str:
    """The secret with the sources of packages for uv: lines for a shell."""
    fixed = {"UV_CACHE_DIR": _CACHE, "UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in (variables | fixed).items())
