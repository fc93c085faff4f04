"""The contents of the registry's folder: its images, their push times, and which of them are no longer needed.

The layout is docker-registry's own (`docker/registry/v2`). Only read here: the registry itself deletes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_Place = tuple[str, str]  # repository and digest
# docker-registry accepts no larger manifest.
_MANIFEST_MAX = 4 * 1024 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest in a repository. `at`: when it was pushed last, unix seconds."""

    repository: str
    digest: str
    at: float

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}"


def stored(storage: Path) -> list[Stored]:
    """All manifests, by repository."""
    found = []
    for folder in sorted(_root(storage, "repositories").glob("**/_manifests/revisions/sha256")):
        repository = folder.parents[2].relative_to(_root(storage, "repositories")).as_posix()
        for link in sorted(folder.glob("*/link")):
            found.append(Stored(repository, f"sha256:{link.parent.name}", link.stat().st_mtime))
    return found


def tagged(storage: Path, repository: str, tag: str) -> str | None:
    """The digest that a tag names; None if the tag does not exist."""
    link = _root(storage, "repositories") / repository / "_manifests/tags" / tag / "current/link"
    try:
        digest = link.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return digest if _DIGEST.fullmatch(digest) else None


def needed(storage: Path, address: str, keep: Collection[str]) -> set[str]:
    """The stored manifests of the images named in `keep`, including the parts of an index, as `REPOSITORY@sha256:…`."""
    return {f"{repository}@{digest}" for repository, digest in _with_parts(storage, _named(storage, address, keep))}


def unneeded(
    storage: Path, keep: Collection[str], before: float, last_needed: Mapping[str, float] | None = None
) -> list[Stored]:
    """Manifests that are not in `keep` (see `needed`), and were last pushed and last needed before a time.

    Manifests listed by an index that stays are excluded. `last_needed`: when (unix seconds) each was last needed.
    """
    everything, noted = stored(storage), last_needed or {}
    # A new image may be about to be registered, and so may an index with old parts.
    young = [one for one in everything if max(one.at, noted.get(str(one), 0.0)) >= before]
    stays = _with_parts(storage, ((one.repository, one.digest) for one in young))
    kept = {*keep, *(f"{repository}@{digest}" for repository, digest in stays)}
    return [one for one in everything if str(one) not in kept]


def size_bytes(storage: Path) -> int:
    """The size of all layers and manifests."""
    return sum(file.stat().st_size for file in _root(storage, "blobs").glob("sha256/*/*/data"))


def _named(storage: Path, address: str, names: Iterable[str]) -> Iterator[_Place]:
    """The places of the images with these names, as far as they are stored."""
    for name in names:
        if not name.startswith(f"{address}/"):
            continue
        rest, _, pinned = name.removeprefix(f"{address}/").partition("@")
        repository, _, tag = rest.partition(":")
        digest = pinned or tagged(storage, repository, tag or "latest")
        if digest:
            yield repository, digest


def _with_parts(storage: Path, places: Iterable[_Place]) -> Iterator[_Place]:
    """These, and the manifests listed by each index among them."""
    for repository, digest in places:
        yield repository, digest
        yield from ((repository, part) for part in _parts(storage, digest))


def _parts(storage: Path, digest: str) -> list[str]:
    """The entries of an index. The user who pushes chooses the content, and a digest may name a layer of any size."""
    algorithm, _, code = digest.partition(":")
    try:
        with (_root(storage, "blobs") / algorithm / code[:2] / code / "data").open("rb") as blob:
            content = blob.read(_MANIFEST_MAX + 1)
        if len(content) > _MANIFEST_MAX:
            return []
        return [str(part["digest"]) for part in json.loads(content).get("manifests", ())]
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return []


def _root(storage: Path, what: str) -> Path:
    return storage / "docker/registry/v2" / what
