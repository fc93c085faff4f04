"""Limits on the disk space of folders, where the file system has project quotas. Called by `homes`, in threads."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import OWNERS
from commonage.files.safe_path import SafePath
from commonage.storage.project_quotas import OURS, gap_of, limit_of, project_of, put_in_project, set_limit

_log = logging.getLogger(__name__)


def gap_at(folder: SafePath) -> StorageGap | None:
    """Why the file system of a folder cannot enforce limits; None if it can. Blocks briefly."""
    try:
        with folder.open_path() as descriptor:
            return gap_of(descriptor)
    except OSError:  # it is not on this machine, or vanished
        return StorageGap.NO_PROJECT_QUOTAS


def existing_part(source: str) -> SafePath:
    """The folder above the first part of a source that differs by tenant or user."""
    parts = [part for part in source.split("/") if part]
    first = next((index for index, part in enumerate(parts) if part in OWNERS), len(parts))
    return SafePath(Path("/"), tuple(parts[:first]))


@dataclass(slots=True)
class _Limited:
    """A folder with its limit in KiB, 0 for none, and its project, 0 for none yet."""

    folder: SafePath
    limit_kib: int
    project: int


def limit(folders: Mapping[SafePath, int | None]) -> None:
    """Set these limits, in MiB; None: no limit. Raises nothing: what fails is tried again at the next turn."""
    known: list[_Limited] = []
    taken: set[int] = set()
    for folder, mib in folders.items():
        with contextlib.suppress(OSError), folder.folder() as descriptor:
            project = project_of(descriptor)
            if project and project not in OURS:
                continue  # an admin's
            if project in taken:
                project = 0  # a copy of another folder
            taken.add(project)
            if project or mib is not None:
                known.append(_Limited(folder, 0 if mib is None else max(1, 1024 * mib), project))
    for one in known:
        try:
            _limit_one(one, taken)
        except OSError as error:
            _log.warning("no limit on %s: %s", one.folder, error.strerror)


def _limit_one(one: _Limited, taken: set[int]) -> None:
    with one.folder.folder() as descriptor:
        project = one.project or _free_project(one.folder, descriptor, taken)
        taken.add(project)
        before, _ = limit_of(descriptor, project)
        if before == one.limit_kib:
            return
        if not before:  # so it is done again if the server ends meanwhile
            put_in_project(one.folder, project)
        set_limit(descriptor, project, one.limit_kib)


def _free_project(folder: SafePath, descriptor: int, taken: set[int]) -> int:
    """A project without files and limit; another installation may use the same file system."""
    start = zlib.crc32(os.fsencode(folder.path))
    for offset in range(len(OURS)):
        project = OURS[(start + offset) % len(OURS)]
        if project not in taken and limit_of(descriptor, project) == (0, 0):
            return project
    raise OSError(errno.EUSERS, "all projects are taken")
