"""Materials: volumes whose content comes from a branch of a git repository, and the copies of it in homes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from commonage.domain.errors import InvalidInput
from commonage.domain.reasons.base import Reason

PLACE = "materials"
"""The folder in a home with the copy of each material."""
CURRENT = "current"
"""The name in the volume that leads to the newest version."""
MIN_POLL_S = 10
MAX_FILES = 50_000
_SCHEMES = ("https", "ssh", "http", "git")
_SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:(?!//)[^\s\x00-\x1f]+")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}")


@dataclass(frozen=True, slots=True)
class Material:
    """`folder` "" is the whole repository. `size_mib` bounds a version. `reset_at_start`: each session starts with the
    originals, and edited files are kept under another name.
    """

    repository: str
    branch: str = "main"
    folder: str = ""
    poll_s: int = 30
    size_mib: int = 2048
    reset_at_start: bool = False


@dataclass(frozen=True, slots=True)
class MaterialFile:
    """A file of a version. `blob` is git's id, which follows from the content. `size` in bytes."""

    blob: str
    size: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """The content of a material's folder in a commit, identified by `tree`.

    `skipped` counts links and submodules, which are left out.
    """

    commit: str
    tree: str
    published_at: float
    files: Mapping[str, MaterialFile] = field(default_factory=dict)
    skipped: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(one.size for one in self.files.values())


class SyncStep(StrEnum):
    """Steps of a sync, in this order."""

    RECEIVING = "receiving objects"
    RESOLVING = "resolving deltas"
    WRITING = "writing files"


@dataclass(frozen=True, slots=True)
class MaterialCopy:
    """The copy of a material in one home.

    `edited` files were changed by the user; `offered` are new versions next to them. `deleted` ones were deleted by the
    user. `withdrawn` ones are no longer in the repository, and stay. `blocked` ones cannot be written, because a link
    or folder is in their place. `tree` "": a delivery has not ended.
    """

    commit: str = ""
    tree: str = ""
    at: float = 0.0
    edited: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    error: Reason | None = None


def printable(path: str) -> str:
    """The path as Unicode: git has file names of any bytes."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


def check_material(name: str, material: Material) -> None:
    """Raises InvalidInput, which says what is wrong."""
    parts = material.folder.split("/") if material.folder else []
    wrong = _wrong_repository(material.repository)
    if wrong:
        wrong = f"repository {wrong}"
    elif not _BRANCH.fullmatch(material.branch) or ".." in material.branch:
        wrong = f"branch {material.branch[:60]!r} is not the name of a branch"
    elif any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f]", material.folder):
        wrong = f"folder {material.folder[:60]!r} is not a folder of a repository; write it like course/week-1"
    elif material.poll_s < MIN_POLL_S:
        wrong = f"poll is {material.poll_s} seconds; use at least {MIN_POLL_S}s, and a webhook to be faster"
    if wrong:
        raise InvalidInput(f"the material {name}: {wrong}", field="material", code="invalid-volume")


def _wrong_repository(url: str) -> str:
    if _SCP.fullmatch(url):
        return ""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in _SCHEMES and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f]", url):
        return f"{url[:80]!r} is no address; write https://HOST/PATH or git@HOST:PATH"
    if parts.password or (parts.scheme in ("http", "https") and parts.username):
        return "has a password or token in it, which others could read; set it with `commonage material token`"
    return ""
