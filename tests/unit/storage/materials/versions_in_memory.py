"""Versions of a material for tests of its copies, without git: files in a folder, named by git's id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from commonage.domain.materials import MaterialFile, Version


def blob_of(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


class Contents:
    """Keeps the content of all versions in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def version(self, files: Mapping[str, bytes], at: float = 1_700_000_000.0) -> Version:
        for content in files.values():
            (self._folder / blob_of(content)).write_bytes(content)
        made = {path: MaterialFile(blob_of(content), len(content)) for path, content in files.items()}
        tree = hashlib.sha1(repr(sorted(made.items())).encode(), usedforsecurity=False).hexdigest()
        return Version(tree, tree, at, made)

    def reader(self, version: Version) -> Callable[[str], BinaryIO]:
        return lambda path: (self._folder / version.files[path].blob).open("rb")
