"""Builds of a tenant's environments: what is built, and what a build may register. Pure.

A build is a job of the tenant. It runs `commonage.images.build_job`, gets an order and prints a result. Both cross a
border that the user's code can write to, so a result is checked as if the user had sent it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

from commonage.domain.codec import Unreadable, cleaned, from_json, to_json
from commonage.domain.errors import InvalidInput, TooLarge
from commonage.domain.images import Kernel
from commonage.units import quoted

BUILDER = "builder"
"""The environment in which builds run. It is offered for nothing else."""
ORDER, TOKEN, CERTIFICATE = "COMMONAGE_BUILD", "COMMONAGE_REGISTRY_TOKEN", "COMMONAGE_REGISTRY_CA"
"""Variables of a build: its order, and access to push its image."""
TEXT_MAX = 48 * 1024
_LINES_MAX, _LINE_LENGTH = 64, 8000
_MARK = "commonage-build-result"
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}==[A-Za-z0-9.!+_-]{1,64}", re.ASCII)
_REQUIREMENTS_MAX = 2000
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][a-z0-9.-]*(?::\d{1,5})?(?:/[a-z0-9._-]+)+(?::[\w.-]{1,128}|@sha256:[0-9a-f]{64})?", re.A)


class SourceKind(StrEnum):
    """`environment`: conda's environment.yml. `git`: the first of these files that the repository has."""

    REQUIREMENTS = "requirements"
    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject"
    CONTAINERFILE = "containerfile"
    GIT = "git"
    IMAGE = "image"

    @property
    def has_text(self) -> bool:
        return self not in (SourceKind.GIT, SourceKind.IMAGE)


FILES = {
    "Containerfile": SourceKind.CONTAINERFILE,
    "Dockerfile": SourceKind.CONTAINERFILE,
    "environment.yml": SourceKind.ENVIRONMENT,
    "requirements.txt": SourceKind.REQUIREMENTS,
    "pyproject.toml": SourceKind.PYPROJECT,
}
"""Names of files, in the order in which a repository is searched for them."""


@dataclass(frozen=True, slots=True)
class BuildSource:
    """`text` is the content of the file; `url` a git repository or the name of an image; `ref` a branch or tag."""

    kind: SourceKind
    text: str = ""
    url: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """The environment to build. `registry` is the address of the site's registry, empty without one.

    `has_files`: the files of a Containerfile's context came with the job.
    """

    name: str
    source: BuildSource
    title: str = ""
    description: str = ""
    registry: str = ""
    has_files: bool = False


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """`digest` is that of the image in the registry; the rest is as in `domain.images.Image`."""

    digest: str
    size_bytes: int
    kernels: tuple[Kernel, ...] = ()
    server_prefix: str | None = None
    path: str = ""
    apps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Either pinned `requirements`, or an `image` that was pushed to the registry."""

    requirements: tuple[str, ...] = ()
    image: BuiltImage | None = None


def check_source(source: BuildSource) -> None:
    """Raise InvalidInput or TooLarge for a source that no build may get."""
    if source.kind.has_text and not source.text.strip():
        raise _wrong("text", f"the {source.kind} file is empty")
    if len(source.text.encode()) > TEXT_MAX:
        raise TooLarge(f"the file has more than {TEXT_MAX >> 10} KiB; build from a git repository", field="text")
    if source.kind is SourceKind.IMAGE and not _IMAGE.fullmatch(source.url):
        raise _wrong(
            "url", f"{quoted(source.url, 100)} is not the name of an image, like quay.io/jupyter/base-notebook:1"
        )
    if source.ref and not _REF.fullmatch(source.ref):
        raise _wrong("ref", f"{quoted(source.ref, 100)} is not the name of a branch or tag")
    if source.kind is SourceKind.GIT:
        _check_url(source.url)


def _check_url(url: str) -> None:
    """Only https, and without a password: the URL is shown."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise _wrong("url", f"{quoted(url, 100)} is not a URL") from None
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= 1000
    if parts.scheme != "https" or not host or not plain:
        raise _wrong("url", f"{quoted(url, 100)} is not the https:// address of a git repository")
    if "@" in parts.netloc:
        raise _wrong("url", "the address of the repository has a user or password; only public repositories are built")


def _wrong(field: str, why: str) -> InvalidInput:
    return InvalidInput(why, field=field, code="invalid-build")


def order_text(order: BuildOrder) -> str:
    return json.dumps(to_json(order))


def read_order(text: str) -> BuildOrder:
    """Raises InvalidInput."""
    return _read(BuildOrder, text)


def result_lines(result: BuildResult) -> list[str]:
    """The result as the last lines of the build's log."""
    text = json.dumps(to_json(result))
    parts = [text[start : start + _LINE_LENGTH] for start in range(0, len(text), _LINE_LENGTH)]
    return [f"{_MARK} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]


def read_result(lines: Sequence[str]) -> BuildResult:
    """The result in the last lines of a log, checked. Raises InvalidInput."""
    parts = [line.split(" ", 2) for line in lines[-_LINES_MAX:] if line.startswith(f"{_MARK} ")]
    last = parts[-1][1].partition("/")[2] if parts else ""
    wanted = [f"{number}/{last}" for number in range(1, len(parts) + 1)]
    if not parts or last != str(len(parts)) or [one[1] for one in parts] != wanted:
        raise _wrong("result", "the log of the build does not end with a whole result")
    result = _read(BuildResult, "".join(one[2] for one in parts))
    if result.image is None:
        _check_requirements(result.requirements)
    return result


def _check_requirements(requirements: Sequence[str]) -> None:
    wrong = next((one for one in requirements if not _PINNED.fullmatch(one)), None)
    if wrong is not None:
        raise _wrong("result", f"{quoted(wrong, 100)} is not a package with a version")
    if len(requirements) > _REQUIREMENTS_MAX:
        raise _wrong(
            "result", f"the environment has {len(requirements)} packages; at most {_REQUIREMENTS_MAX} are allowed"
        )


def is_pinned(requirement: str) -> bool:
    return _PINNED.fullmatch(requirement) is not None


T = TypeVar("T", BuildOrder, BuildResult)


def _read(kind: type[T], text: str) -> T:
    try:
        return from_json(kind, cleaned(json.loads(text)))
    except (ValueError, RecursionError, Unreadable) as error:
        raise _wrong("result", f"the build's data cannot be read: {error}") from None
