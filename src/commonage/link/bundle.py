"""Packs the agent as one small archive: `commonage.agent`, the GPU code, and the modules that they import.

Unpacked into a folder, `python3 -m commonage.agent` runs there with only Python 3.11. The same installation always
gives the same bytes. Called by the code that lets nodes join.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import io
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from commonage.domain.errors import CommonageError

_SOURCES = Path(__file__).parents[1]
_PACKAGE = _SOURCES.name
_WHOLE = ("agent", "gpu")
"""Packages that are included whole; of all others only the imported modules."""
_BINDING = "pynvml"
_NOT_THOSE = {"__pycache__"}


class BundleError(CommonageError):
    """This installation lacks a file that agents need; the message says which."""

    code = "bundle"


@cache
def make_bundle() -> bytes:
    """The archive (tar.gz): the folder `commonage` and the NVML binding. Raises BundleError.

    It reads a hundred files, so call it in a thread.
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted({**_ours(), **_binding()}.items()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def _ours() -> dict[str, Path]:
    found: dict[str, Path] = {}
    waiting = [path for room in _WHOLE for path in sorted((_SOURCES / room).rglob("*")) if _travels(path)]
    while waiting:
        path = waiting.pop()
        name = f"{_PACKAGE}/{path.relative_to(_SOURCES).as_posix()}"
        if name in found:
            continue
        found[name] = path
        waiting += _packages_of(path)
        if path.suffix == ".py":
            waiting += _imported(path)
    return found


def _travels(path: Path) -> bool:
    return path.is_file() and not _NOT_THOSE & set(path.parts)


def _packages_of(path: Path) -> Iterator[Path]:
    """The `__init__.py` files of the folders above it."""
    for folder in path.parents:
        if folder == _SOURCES.parent:
            return
        if (folder / "__init__.py").exists():
            yield folder / "__init__.py"


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _module(name)


def _module(name: str) -> Iterator[Path]:
    first, *rest = name.split(".")
    if first != _PACKAGE:
        return
    place = _SOURCES.joinpath(*rest)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            yield path


def _binding() -> dict[str, Path]:
    found = importlib.util.find_spec(_BINDING)
    if found is None or found.origin is None:
        raise BundleError(f"{_BINDING} is not installed here, and agents need it: install nvidia-ml-py")
    return {f"{_BINDING}.py": Path(found.origin)}
