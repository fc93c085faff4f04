"""Packs the agent as one small archive: `commonage.agent`, the GPU code, and the modules that they import.

Unpacked into a folder, `python3 -m commonage.agent` runs there with only Python 3.11. The same installation always
gives the same bytes. Called by the code that lets nodes join.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import tarfile
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path

from commonage.domain.errors import CommonageError

_SOURCES = Path(__file__).parents[1]
_PACKAGE = _SOURCES.name
_WHOLE = ("agent", "gpu")
"""Packages that are included whole; of all others only the imported modules."""
_BINDING = "pynvml"


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
    """Commonage's files by their names in the archive."""
    root = _SOURCES.parent
    files = [path for package in _WHOLE for path in (_SOURCES / package).rglob("*") if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    finder = ModuleFinder([str(root)])
    for path in files:
        if path.suffix == ".py":
            finder.import_hook(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    modules = [vars(one)["__file__"] for name, one in finder.modules.items() if name.partition(".")[0] == _PACKAGE]
    files += [Path(file) for file in modules if file is not None]
    return {path.relative_to(root).as_posix(): path for path in files}


def _binding() -> dict[str, Path]:
    spec = importlib.util.find_spec(_BINDING)
    if spec is None or spec.origin is None:
        raise BundleError(f"{_BINDING} is not installed here, and agents need it: install nvidia-ml-py")
    return {f"{_BINDING}.py": Path(spec.origin)}
