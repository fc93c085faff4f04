"""Versions of a material: a folder for each content, which is never changed, and a link to the one in force.

    MATERIALS/NAME/current -> .versions/TREE      the volume that workloads mount read-only
    MATERIALS/NAME/.versions/TREE/                one version, named by git's id of its content
    REPOSITORIES/NAME/repository                  what was fetched, in the data folder; no workload sees it
    REPOSITORIES/NAME/version.json                the commit in force

An unchanged file is a hard link to that of the previous version, so a version takes only the space of its changes.
Other nodes of a Swarm write to MATERIALS. So the list of a version's files is always read from the repository, and each
file is compared with git's id before it is used (`copies.py`). Everything here blocks.
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
from functools import partial
from pathlib import Path

from commonage.domain.errors import Unavailable
from commonage.domain.materials import CURRENT, MAX_FILES, Material, MaterialFile, SyncStep, Version
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
_SLACK_BYTES = 64 * _MIB  # what git needs in addition to the files of a version
_STEPS = {"Receiving objects": SyncStep.RECEIVING, "Resolving deltas": SyncStep.RESOLVING}


@dataclass(slots=True)
class Versions:
    """`root` is MATERIALS, `repositories` is REPOSITORIES. `syncing`: the steps of running syncs."""

    root: SafePath
    repositories: Path
    syncing: dict[str, reasons.MaterialSyncing] = field(default_factory=dict)
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
            if before is not None:
                self._collect(branch, material, before)  # here and not after a fetch, so that a push never waits for it
            commit = branch.newest(self._check_stopping)
            if before is None or before.commit != commit or self._folder_of(name) != material.folder:
                self._tell(name, SyncStep.RECEIVING, 0)
                told = partial(self._tell_git, name)
                commit = branch.fetch(lambda: self._check_room(name, material), told)
            return self._take(name, material, branch, commit, now)
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
        finally:
            self.syncing.pop(name, None)

    def _tell(self, name: str, step: SyncStep, percent: int) -> None:
        self.syncing[name] = reasons.MaterialSyncing(material=name, step=step.value, percent=percent)

    def _tell_git(self, name: str, step: str, percent: int) -> None:
        self._tell(name, _STEPS[step], percent)

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
            self._check_size(name, material, version, before)
            self.extract(name, version, before)
        self._switch(name, version, material.folder)
        return version

    def _check_size(self, name: str, material: Material, version: Version, before: Version | None) -> None:
        if version.size_bytes > material.size_mib * _MIB:
            raise Unavailable(reasons.MaterialTooLarge(material=name, limit_mib=material.size_mib))
        linked = _by_content(before)
        new = sum(one.size for one in version.files.values() if (one.blob, one.executable) not in linked)
        needed, free = -(-new // _MIB), _free_mib(self._home(name))
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

    def extract(self, name: str, version: Version, before: Version | None = None) -> None:
        """Write the files of a version, unless they are there. Unchanged files become links to those of `before`.

        Raises OSError, GitFailed.
        """
        target = self._folder(name, version.tree)
        if target.is_folder():
            return
        new = target.parent / f".{version.tree}.new"
        new.remove()
        new.make_folder(0o755, parents=True)
        branch = Branch("", "main", self._repository(name))
        linked, done = _by_content(before), 0
        with branch.reading() as reader:
            for path, file in version.files.items():
                self._check_stopping()
                place, same = _below(new, path), linked.get((file.blob, file.executable))
                if len(place.names) > len(new.names) + 1:
                    place.parent.make_folder(0o755, parents=True)
                if before is None or same is None or not _is_linked(self.file(name, before.tree, same), place, file):
                    _extract(place, file, reader)
                done += file.size
                if name in self.syncing:
                    self._tell(name, SyncStep.WRITING, 100 * done // max(version.size_bytes, 1))
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
        return [one for one in names if current is None or one != current.tree]

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

    def _collect(self, branch: Branch, material: Material, version: Version) -> None:
        """Delete old commits, if they are large or leave no room for a new one (`_check_room`)."""
        limit = min(2 * version.size_bytes + _SLACK_BYTES, material.size_mib * _MIB + _SLACK_BYTES // 2)
        if _size(branch.folder) > limit:
            with contextlib.suppress(GitFailed):  # the next sync tries again
                branch.collect(self._check_stopping)

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
    """Whether it leads to a place below its folder: a forged repository can have other names."""
    return all(part not in ("", ".", "..") and len(os.fsencode(part)) <= 255 for part in path.split("/"))


def _below(folder: SafePath, path: str) -> SafePath:
    return SafePath(folder.root, (*folder.names, *path.split("/")))


def _by_content(version: Version | None) -> dict[tuple[str, bool], str]:
    """One path for each content and mode."""
    return {} if version is None else {(one.blob, one.executable): path for path, one in version.files.items()}


def _is_linked(source: SafePath, place: SafePath, file: MaterialFile) -> bool:
    """Link to a file of the previous version. False if that has another size or mode, or cannot be linked."""
    try:
        found = source.stat()
        is_same = stat.S_ISREG(found.st_mode) and (found.st_size, stat.S_IMODE(found.st_mode)) == (
            file.size, _mode(file),
        )  # fmt: skip
        if is_same:
            source.link(place)
    except OSError:
        return False
    return is_same


def _mode(file: MaterialFile) -> int:
    return 0o555 if file.executable else 0o444


def _extract(place: SafePath, file: MaterialFile, reader: BlobReader) -> None:
    descriptor = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        for part in reader.chunks(file.blob):
            target.write(part)
        os.fchmod(target.fileno(), _mode(file))


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
