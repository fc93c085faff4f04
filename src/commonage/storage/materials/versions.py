"""Versions of a material: a folder for each content, which is never changed, and a link to the one in force.

    MATERIALS/NAME/current -> .versions/TREE      the volume that workloads mount read-only
    MATERIALS/NAME/.versions/TREE/                one version, named by git's id of its content
    REPOSITORIES/NAME/repository                  what was fetched, in the data folder; no workload sees it
    REPOSITORIES/NAME/version.json                the commit in force

Other nodes of a Swarm write to MATERIALS. So what a version consists of is always read from the repository, and a file
of it is compared with git's id before it is used (`copies.py`). Everything here blocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commonage.domain.errors import Unavailable
from commonage.domain.materials import CURRENT, MAX_FILES, Material, MaterialFile, Version
from commonage.domain.reasons import Reason
from commonage.domain.reasons import materials as reasons
from commonage.files.git import (
    REMOTE_ONLY,
    BlobReader,
    Branch,
    BranchMissing,
    GitAccess,
    GitFailed,
    TooManyEntries,
    TreeEntry,
)
from commonage.files.safe_path import SafePath
from commonage.storage.materials.content import id_of

_VERSIONS = ".versions"
_FILES = ("100644", "100755", "100664")
_RESERVE_MIB = 1024  # of the disk, which others need as well
_MIB = 1024 * 1024
_SLACK_BYTES = 64 * _MIB  # what git needs besides the files of a version


@dataclass(slots=True)
class Versions:
    """`root` is MATERIALS, `repositories` is REPOSITORIES."""

    root: SafePath
    repositories: Path
    _known: dict[str, Version] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def current(self, name: str) -> Version | None:
        """The version in force. The folder is made if it is missing. Raises Unavailable."""
        known = self._known.get(name)
        if known is not None:
            return known
        try:
            self._home(name).make_folder(0o755, parents=True)
            found = json.loads((self.repositories / name / "version.json").read_text(encoding="utf-8"))
            branch = Branch("", "main", self._repository(name))
            version = _version(branch, found["commit"], found["tree"], found["at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, GitFailed) as error:
            raise Unavailable(reasons.MaterialNotWritten(material=name, detail=str(error))) from error
        self._known[name] = version
        return version

    def sync(self, name: str, material: Material, access: GitAccess, now: float) -> Version:
        """Fetch, and put the newest commit in force. Raises Unavailable with a reason."""
        url = material.repository
        try:
            self._repository(name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            branch = Branch(url, material.branch, self._repository(name), {**REMOTE_ONLY, **access.variables(url)})
            before = self.current(name)
            commit = branch.newest(self._check_stopping)
            if before is None or before.commit != commit or self._folder_of(name) != material.folder:
                commit = branch.fetch(lambda: self._check_room(name, material))
            version = self._take(name, material, branch, commit, now)
            if version != before:
                self._collect(branch, version)
            return version
        except BranchMissing as error:
            reason: Reason = reasons.MaterialBranchMissing(material=name, branch=material.branch)
            raise Unavailable(reason) from error
        except TooManyEntries as error:
            reason = reasons.MaterialTooManyFiles(material=name, files=MAX_FILES + 1, limit=MAX_FILES)
            raise Unavailable(reason) from error
        except GitFailed as error:
            raise Unavailable(reasons.MaterialUnreachable(material=name, detail=str(error)[-300:])) from error
        except OSError as error:
            detail = f"{error.strerror or error}"
            raise Unavailable(reasons.MaterialNotWritten(material=name, detail=detail)) from error

    def _take(self, name: str, material: Material, branch: Branch, commit: str, now: float) -> Version:
        tree = branch.tree(commit, material.folder)
        if tree is None:
            raise Unavailable(
                reasons.MaterialFolderMissing(material=name, folder=material.folder or "/", commit=commit)
            )
        before = self._known.get(name)
        if before is not None and before.tree == tree and self._folder(name, tree).is_folder():
            version = Version(commit, tree, before.published_at, before.files, before.skipped)
        else:
            version = _version(branch, commit, tree, now)
            self._check_size(name, material, version)
            self.extract(name, version)
        self._switch(name, version, material.folder)
        return version

    def _check_size(self, name: str, material: Material, version: Version) -> None:
        if version.size_bytes > material.size_mib * _MIB:
            raise Unavailable(reasons.MaterialTooLarge(material=name, limit_mib=material.size_mib))
        needed, free = -(-version.size_bytes // _MIB), _free_mib(self._home(name))
        if needed + _RESERVE_MIB > free:
            raise Unavailable(reasons.MaterialDiskFull(material=name, needed_mib=needed, free_mib=free))

    def _check_room(self, name: str, material: Material) -> None:
        """While git fetches: the repository may not grow without bound, whatever its server sends."""
        self._check_stopping()
        folder = self._repository(name)
        # A repository has at most the version before and the new one, and compression seldom makes files larger.
        if _size(folder) > 2 * material.size_mib * _MIB + _SLACK_BYTES:
            raise Unavailable(reasons.MaterialTooLarge(material=name, limit_mib=material.size_mib))
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize // _MIB
        if free < _RESERVE_MIB:
            raise Unavailable(reasons.MaterialDiskFull(material=name, needed_mib=_RESERVE_MIB, free_mib=free))

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise GitFailed("the server stops")

    def extract(self, name: str, version: Version) -> None:
        """Write the files of a version, unless they are there. Raises OSError, GitFailed."""
        target = self._folder(name, version.tree)
        if target.is_folder():
            return
        new = target.parent / f".{version.tree}.new"
        new.remove()
        new.make_folder(0o755, parents=True)
        branch = Branch("", "main", self._repository(name))
        with branch.reading() as reader:
            for path, file in version.files.items():
                _extract(new, path, file, reader)
        new.move(target)

    def is_damaged(self, name: str, version: Version) -> bool:
        """True if a file of the version is not what git has."""
        return any(
            id_of(self.file(name, version.tree, path), one.size, one.blob) != one.blob
            for path, one in version.files.items()
        )

    def discard(self, name: str, tree: str) -> None:
        """Remove a damaged version, for `extract` to write it again. Raises OSError."""
        gone = self._folder(name, tree).parent / f".{tree}.gone"
        gone.remove()
        if self._folder(name, tree).exists():
            self._folder(name, tree).move(gone)
            gone.remove()

    def stop(self) -> None:
        """End running fetches."""
        self._stopping.set()

    def file(self, name: str, tree: str, path: str) -> SafePath:
        return _below(self._folder(name, tree), path)

    def old(self, name: str) -> list[str]:
        """Raises OSError."""
        current, place = self._known.get(name), self._home(name) / _VERSIONS
        names = place.list_names() if place.is_folder() else []
        return [one for one in names if not one.startswith(".") and (current is None or one != current.tree)]

    def names(self) -> list[str]:
        try:
            return [one.name for one in self.repositories.iterdir() if one.is_dir()]
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Raises OSError."""
        self._known.pop(name, None)
        self._home(name).remove()
        if (self.repositories / name).exists():
            shutil.rmtree(self.repositories / name)

    def _switch(self, name: str, version: Version, folder: str) -> None:
        """Put it in force: first the record, then the link that workloads follow."""
        record = {"commit": version.commit, "tree": version.tree, "at": version.published_at, "folder": folder}
        place = self.repositories / name / "version.json"
        new = place.with_suffix(".new")
        new.write_text(json.dumps(record), encoding="utf-8")
        new.replace(place)
        home = self._home(name)
        home.make_folder(0o755, parents=True)
        link, wanted = home / f".{CURRENT}.new", f"{_VERSIONS}/{version.tree}"
        with self._lock, home.open_path() as descriptor:
            try:
                is_there = os.readlink(CURRENT, dir_fd=descriptor) == wanted
            except OSError:
                is_there = False
            if not is_there:
                link.remove()
                os.symlink(wanted, link.name, dir_fd=descriptor)
                link.move(home / CURRENT)
        self._known[name] = version

    def _collect(self, branch: Branch, version: Version) -> None:
        if _size(branch.folder) > 2 * version.size_bytes + _SLACK_BYTES:
            with contextlib.suppress(GitFailed):  # the next version tries again
                branch.collect()

    def _folder_of(self, name: str) -> str | None:
        """The folder of the repository that the version in force is from."""
        try:
            found = json.loads((self.repositories / name / "version.json").read_text(encoding="utf-8"))
            return str(found["folder"])
        except (OSError, ValueError, KeyError):
            return None

    def _home(self, name: str) -> SafePath:
        return self.root / name

    def _folder(self, name: str, tree: str) -> SafePath:
        return self._home(name) / _VERSIONS / tree

    def _repository(self, name: str) -> Path:
        return self.repositories / name / "repository"


def _version(branch: Branch, commit: str, tree: str, at: float) -> Version:
    """Raises GitFailed, TooManyEntries."""
    entries = branch.entries(tree, MAX_FILES)
    files = {one.path: _file(one) for one in entries if one.mode in _FILES and _is_plain(one.path)}
    return Version(commit, tree, at, files, len(entries) - len(files))


def _file(entry: TreeEntry) -> MaterialFile:
    return MaterialFile(entry.blob, entry.size, executable=entry.mode == "100755")


def _is_plain(path: str) -> bool:
    """Whether it leads to a place below its folder: a repository that somebody forged can have other names."""
    return all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in path.split("/"))


def _below(folder: SafePath, path: str) -> SafePath:
    return SafePath(folder.root, (*folder.names, *path.split("/")))


def _extract(folder: SafePath, path: str, file: MaterialFile, reader: BlobReader) -> None:
    place = _below(folder, path)
    if len(place.names) > len(folder.names) + 1:
        place.parent.make_folder(0o755, parents=True)
    descriptor = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        for part in reader.chunks(file.blob):
            target.write(part)
        os.fchmod(target.fileno(), 0o555 if file.executable else 0o444)


def _free_mib(folder: SafePath) -> int:
    folder.make_folder(0o755, parents=True)
    with folder.folder() as descriptor:
        disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize // _MIB


def _size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(_sizes(os.fspath(folder)))


def _sizes(folder: str) -> Iterator[int]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for one in entries:
            with contextlib.suppress(OSError):  # git removes temporary files meanwhile
                found = one.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    yield from _sizes(one.path)
                else:
                    yield found.st_size
