"""Reads the contents of a Python environment from its files, without running any of it. Called once it is made."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from commonage.domain.images import Contents, Kernel, Package
from commonage.engines.process.translate import PATH
from commonage.engines.process.uv import kernel_folder
from commonage.files.apps import apps_in, apps_of_environments, modules
from commonage.files.kernels import DEFAULT_KERNEL, kernel_title


def read_contents(folder: Path, kernels: Sequence[str]) -> Contents:
    """Its kernels, apps and size, now. Without kernels of its own, its Python is the only one. Raises OSError."""
    places = {name: kernel_folder(folder, name) for name in kernels} or {DEFAULT_KERNEL: folder}
    found = tuple(Kernel(name, kernel_title(name), str(place), packages(place)) for name, place in places.items())
    return Contents(
        found, apps_in(_programs(folder, next(iter(places.values()))) | _modules(folder)), size_of(folder), time.time()
    )


def _programs(folder: Path, first: Path) -> set[str]:
    """The programs of apps on the search path of its sessions, which has those of the first kernel."""
    path = f"{first}/bin:{folder}/bin:{PATH}"
    return {
        name
        for app in apps_of_environments()
        for name in app.programs
        if shutil.which(name, path=":".join((path, *app.folders)))
    }


def _modules(folder: Path) -> set[str]:
    places = list(folder.glob("lib/python*/site-packages"))
    return {
        name for name in modules() for place in places if (place / name).is_dir() or (place / f"{name}.py").exists()
    }


def packages(place: Path) -> tuple[Package, ...]:
    """The installed distributions of a virtual environment, by name."""
    metadata = (path.name.removesuffix(".dist-info") for path in place.glob("lib/python*/site-packages/*.dist-info"))
    found = (name.partition("-") for name in metadata)
    return tuple(sorted((Package(name.replace("_", "-"), version) for name, _, version in found), key=_by_name))


def _by_name(package: Package) -> str:
    return package.name.lower()


def size_of(folder: Path) -> int:
    """Bytes of its files. A file with several names counts once."""
    sizes: dict[int, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(parent, name))
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
