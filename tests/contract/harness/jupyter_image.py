"""An image with JupyterLab, a kernel and TensorBoard, built as `commonage image build` does, on the tests' small base.

The recipe, buildah and all packages are real; they are those that the catalogue pins. It is kept in /tmp under a name
that identifies its content, and is built before the tests that need it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pytest
from tests.contract.harness.dockerd import Dockerd
from tests.contract.harness.leftovers import FOLDER, tag
from tests.contract.harness.made_once import forget_others, made_once
from tests.integration.registry_site import base_tar, buildah_store, forget_store

from commonage.catalogue import builtin_environments
from commonage.domain.images import parse_image_name
from commonage.images import builder, recipe
from commonage.images.builder import BuildTools, ListBuild, build_lists
from commonage.images.package_sources import package_sources

NAME = "commonage-jupyter:1"
AHEAD = "jupyter image"
_BASE = "localhost/small"
_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")
"""Debian's own base has them: packages for Python expect them on every system."""
_PREFIX = "jupyter-"
_PROXY, _APP = ("jupyter-server-proxy",), "tensorboard"


@cache
def archive() -> Path:
    """The image as `docker load` takes it; made when it is not there."""
    pins = [one.requirements for one in builtin_environments()]
    told = f"{pins} {_LIBRARIES} {_PROXY} {_APP} {sys.version} {inspect.getsource(recipe)} {inspect.getsource(builder)}"
    place = made_once(f"{_PREFIX}{hashlib.sha256(told.encode()).hexdigest()[:12]}", _make)
    forget_others(_PREFIX, place)
    return place / "image.tar"


def _make(place: Path, log: IO[bytes]) -> None:
    with TemporaryDirectory(prefix=f"{FOLDER}{tag()}-") as made, pytest.MonkeyPatch.context() as here:
        folder = Path(made)
        for name, value in buildah_store(folder).items():
            here.setenv(name, value)

        def said(*words: str) -> str:
            return subprocess.run(words, stdout=subprocess.PIPE, stderr=log, check=True, text=True).stdout.strip()

        try:
            (folder / "base.tar").write_bytes(base_tar())
            _add_libraries(folder / "base.tar")
            container = said("buildah", "from", "scratch")
            said("buildah", "add", "--quiet", container, str(folder / "base.tar"), "/")
            said("buildah", "commit", "--quiet", "--rm", container, _BASE)
            (folder / "requirements.txt").write_text(f"{_APP}\n")
            kernels = {recipe.DEFAULT_KERNEL: [folder / "requirements.txt"]}
            tools = BuildTools("chroot", package_sources(os.environ))
            name = parse_image_name(NAME.replace("-", "/"))
            image = build_lists(
                name, ListBuild(_BASE, kernels, server_packages=_PROXY), tools, lambda line: _note(log, line)
            )
            said("buildah", "push", "--quiet", image, f"docker-archive:{place}/image.tar:{NAME}")
        finally:
            forget_store(folder)


def _add_libraries(base: Path) -> None:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(base, "a") as archive:
        for library in _LIBRARIES:
            path = next(line.split()[-1] for line in listed.splitlines() if line.split()[:1] == [library])
            if path not in archive.getnames() and path.lstrip("/") not in archive.getnames():
                archive.add(os.path.realpath(path), path)


def _note(log: IO[bytes], line: str) -> None:
    log.write(f"{line}\n".encode())


def load_jupyter(daemon: Dockerd) -> None:
    load = ["docker", "-H", daemon.url, "load", "--quiet", "--input", str(archive())]
    subprocess.run(load, check=True, capture_output=True)
