"""The copy of a material in a home. Its user edits it, and nothing that the user wrote is ever lost.

    HOME/materials/NAME/                    the files
    HOME/.commonage/materials/NAME/state    what was delivered, as JSON
    HOME/.commonage/materials/NAME/new/     files that are being written
    HOME/.commonage/materials/NAME/old/     files that a delivery replaced, until it is certain that they are unedited

| the file in the home | a new version of it |
|---|---|
| is missing, and never was there | is put there |
| is as it was delivered | replaces it |
| was edited | is put next to it, as `NAME.new-DATE.EXT` |
| was deleted by the user | is not put there, until a reset |

Nothing is overwritten: a new name is a hard link, which fails if the name is taken, and a file that is replaced is
moved to `old/` first. There it is compared with the delivered version, now and in a later round, because a program may
still have it open. If it differs, it gets the name `NAME.mine-DATE.EXT`. A file that is no longer in the repository
stays.

The user can change all of this at any time, so no link is followed (`SafePath`), and `state` counts as no more than a
hint about this user's own files: how much is read follows from the version, and a file that is not read counts as
edited. Everything here blocks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from commonage.domain.materials import MAX_FILES, PLACE, MaterialCopy, MaterialFile, Version
from commonage.domain.reasons import Reason
from commonage.domain.reasons import materials as reasons
from commonage.files.safe_path import SafePath
from commonage.ports.materials import EVERYTHING, Damaged
from commonage.storage.materials.content import CHUNK, digest_of, id_of
from commonage.storage.room import room_in

OWN = ".commonage"
_MAX_STATE_BYTES, _MAX_STATE_BYTES_OF_FILE = 8 * 1024 * 1024, 1024
"""A larger state, parsed, would stop all threads. It also names files of earlier versions."""
_MAX_STATE_FILES = 4 * MAX_FILES  # with those that versions before had
_MAX_TRIES = 8
_MAX_TIME = 1e11
_ROOT = Path("/")
_LATE_S = 60.0  # a program that has a replaced file open has written to it by then
_MIB = 1024 * 1024
_LOOK_BYTES = 64 * _MIB  # read in addition to the files of the version
_ROUND_BYTES = 2048 * _MIB  # the same for a round, which compares files of the version before, too
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_THE_WAY = (
    errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM,
)  # fmt: skip


class Source(Protocol):
    """A file of a version, opened for reading."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


Read = Callable[[str], Source]
"""Opens the file of a version at this path. Raises OSError."""


class _Raced(Exception):
    """The user changed the file meanwhile. The next round looks again."""


@dataclass(slots=True)
class _Entry:
    """`blob` and `size`: what was delivered; "" for a file of the user's own. `tries`: what an interrupted round may
    have delivered. `seen`: the file's status when it had this content. `offered`: name, blob and size of the version
    next to it. `blocked`: something is in its way.
    """

    blob: str = ""
    size: int = 0
    tries: list[tuple[str, int]] = field(default_factory=list)
    seen: tuple[int, ...] | None = None
    offered: tuple[str, str, int] | None = None
    blocked: bool = False

    @property
    def delivered(self) -> list[tuple[str, int]]:
        return [*([(self.blob, self.size)] if self.blob else []), *self.tries]


@dataclass(slots=True)
class _State:
    tree: str = ""  # "": a round has not ended
    commit: str = ""
    at: float = 0.0
    files: dict[str, _Entry] = field(default_factory=dict)


@dataclass(slots=True)
class HomeCopy:
    """The copy of the material `name` in the folder `home`. Not for two rounds at once."""

    home: SafePath
    name: str
    _readable: int = 0  # bytes that may still be read to compare files

    def look(self, version: Version | None = None) -> MaterialCopy | None:
        """The copy as it is. Raises OSError."""
        if not self._own.is_folder():
            return None
        self._readable = _LOOK_BYTES + (0 if version is None else 2 * version.size_bytes)
        return self._copy(self._load(version), version)

    def deliver(
        self, version: Version, read: Read, at: float, reset: Collection[str] = (), room_mib: int | None = None
    ) -> MaterialCopy:
        """Bring it to this version. Raises Damaged, OSError before anything was done."""
        self._readable = _ROUND_BYTES + 2 * version.size_bytes
        self.home.make_folder(parents=True)
        self._make_folders()
        state = self._load(version)
        is_blocked = any(one.blocked for one in state.files.values())
        if state.tree == version.tree and not reset and not is_blocked and not self._old.list_names():
            return self._copy(replace(state, commit=version.commit), version)
        return _Round(self, state, version, read, at, frozenset(reset)).run(room_mib)

    # --- folders and state ----------------------------------------------------------------------------------------

    @property
    def place(self) -> SafePath:
        return self.home / PLACE / self.name

    @property
    def _own(self) -> SafePath:
        return self.home / OWN / PLACE / self.name

    @property
    def _new(self) -> SafePath:
        return self._own / "new"

    @property
    def _old(self) -> SafePath:
        return self._own / "old"

    @property
    def _state(self) -> SafePath:
        return self._own / "state"

    def _make_folders(self) -> None:
        for folder in (
            self.home / PLACE, self.place, self.home / OWN, self.home / OWN / PLACE, self._own, self._new, self._old,
        ):  # fmt: skip
            if folder.make_folder(0o755 if OWN not in folder.names else 0o700):
                self.give(folder)
        owner = self.home.stat()
        if os.geteuid() == 0 and self._own.stat().st_uid != owner.st_uid:
            # The home was given to its user after the first delivery.
            for folder in (self.home / PLACE, self.home / OWN, self.home / OWN / PLACE):
                folder.chown(owner.st_uid, owner.st_gid)
            _give_all(self.place, owner.st_uid, owner.st_gid)
            _give_all(self._own, owner.st_uid, owner.st_gid)  # last, as it shows that all is done
        for left in self._new.list_names():
            (self._new / left).remove()

    def give(self, place: SafePath) -> None:
        """Let it belong to the owner of the home."""
        owner = self.home.stat()
        if os.geteuid() == 0 and owner.st_uid != 0:
            place.chown(owner.st_uid, owner.st_gid)

    def at(self, path: str) -> SafePath:
        return SafePath(self.place.root, (*self.place.names, *path.split("/")))

    def _load(self, version: Version | None) -> _State:
        """The state; an empty one if it is missing, unreadable, or larger than one of this version would be."""
        limit = _MAX_STATE_BYTES + _MAX_STATE_BYTES_OF_FILE * (0 if version is None else len(version.files))
        try:
            text = self._state.read(limit + 1)
            if len(text) > limit:
                return _State()
            return _state_of(json.loads(text))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return _State()

    def save(self, state: _State) -> None:
        self._state.write(json.dumps(_json_of(state), ensure_ascii=False).encode("utf-8", "surrogatepass"))
        self.give(self._state)

    def _copy(self, state: _State, version: Version | None) -> MaterialCopy:
        edited, offered, deleted, withdrawn, blocked = [], [], [], [], []
        for path, entry in sorted(state.files.items()):
            if entry.offered is not None and self._found(_sibling(path, entry.offered[0])) is not None:
                offered.append(_sibling(path, entry.offered[0]))
            is_wanted = version is None or path in version.files
            found = self._found(path)
            if entry.blocked or (found is not None and not stat.S_ISREG(found.st_mode)):
                blocked += [path] if is_wanted else []
            elif found is None:
                deleted += [path] if entry.blob and is_wanted else []
            elif not is_wanted:
                withdrawn.append(path)
            elif self.blob(path, found, entry) not in (entry.blob or "-", *(one for one, _ in entry.tries)):
                edited.append(path)
        return MaterialCopy(
            state.commit, state.tree, state.at, tuple(edited), tuple(offered), tuple(deleted), tuple(withdrawn),
            tuple(blocked),
        )  # fmt: skip

    # --- files ----------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> os.stat_result | None:
        """None if it is missing. Raises OSError if a link or a file is in the way."""
        try:
            return self.at(path).stat()
        except FileNotFoundError:
            return None

    def _found(self, path: str) -> os.stat_result | None:
        with suppress(OSError):
            return self.stat(path)
        return None

    def blob(self, path: str, found: os.stat_result, entry: _Entry, *more: tuple[str, int]) -> str:
        """Git's id of the file if it may be one of those that were delivered; otherwise "", without reading it."""
        if entry.blob and entry.seen == _seen(found):
            return entry.blob
        known = [*entry.delivered, *more]
        if found.st_size not in {size for _, size in known}:
            return ""
        return self.id_of(self.at(path), found.st_size, known[0][0])

    def id_of(self, place: SafePath, size: int, like: str) -> str:
        """Git's id of the file; "" also if it is too much to read."""
        if size > self._readable:
            return ""
        self._readable -= size
        return id_of(place, size, like)


@dataclass(slots=True)
class _Round:
    """One delivery."""

    copy: HomeCopy
    state: _State
    version: Version
    read: Read
    at: float
    reset: frozenset[str]
    _raced: bool = False

    def run(self, room_mib: int | None) -> MaterialCopy:
        error: Reason | None = None
        try:
            self._recover()
            self._announce()
            error = self._why_no_room(room_mib)
            if error is None:
                for path, file in sorted(self.version.files.items()):
                    self._bring(path, file)
        except OSError as failure:
            error = self._not_written(failure)
        if error is None and self._raced:
            error = reasons.CopyInterrupted(material=self.copy.name)
        if error is None:
            self._finish()
        with suppress(OSError):  # the state before announces what may be there
            self.copy.save(self.state)
        return replace(self.copy._copy(self.state, self.version), error=error)

    def _not_written(self, failure: OSError) -> Reason:
        if failure.errno in _FULL:
            return reasons.CopyNeedsSpace(material=self.copy.name, needed_mib=self._needed_mib(), free_mib=0)
        return reasons.CopyNotWritten(material=self.copy.name, detail=failure.strerror or str(failure))

    def _announce(self) -> None:
        """Write down what this round may deliver, so that after a crash it is not taken for the user's work."""
        for path, file in self.version.files.items():
            entry = self.state.files.setdefault(path, _Entry())
            wanted = (file.blob, file.size)
            if wanted not in entry.tries:
                entry.tries = [*entry.tries[-_MAX_TRIES:], wanted]
        self.state.tree = ""
        self.copy.save(self.state)

    def _finish(self) -> None:
        for entry in self.state.files.values():
            entry.tries = []
        self.state.tree, self.state.commit, self.state.at = self.version.tree, self.version.commit, self.at

    def _needed_mib(self) -> int:
        files = self.version.files
        needed = sum(one.size for path, one in files.items() if self.state.files[path].blob != one.blob)
        return -(-needed // _MIB)

    def _why_no_room(self, room_mib: int | None) -> Reason | None:
        with self.copy.home.folder() as descriptor:
            free = room_in(descriptor, self.copy.home.parent) // _MIB
        free = free if room_mib is None else min(free, max(0, room_mib))
        needed = self._needed_mib()
        if needed > free:
            return reasons.CopyNeedsSpace(material=self.copy.name, needed_mib=needed, free_mib=free)
        return None

    # --- one file -------------------------------------------------------------------------------------------------

    def _bring(self, path: str, file: MaterialFile) -> None:
        entry = self.state.files[path]
        is_reset = self.reset == EVERYTHING or path in self.reset
        for _ in range(path.count("/") + 2):
            try:
                self._bring_one(path, file, entry, is_reset)
            except _Raced:
                self._raced = True
            except OSError as error:
                if error.errno not in _IN_THE_WAY:
                    raise
                if is_reset and self._clear(path):
                    continue
                entry.blocked = True
                return
            entry.blocked = False
            return
        entry.blocked = True

    def _bring_one(self, path: str, file: MaterialFile, entry: _Entry, is_reset: bool) -> None:
        found = self.copy.stat(path)
        if found is None:
            if is_reset or not entry.blob:
                self._put(path, file, entry)
            return
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        present = self.copy.blob(path, found, entry, (file.blob, file.size))
        if present == file.blob:
            self._settle(path, file, entry, _content(found))
        elif present and present in [blob for blob, _ in entry.delivered]:
            self._replace(path, file, entry, present, found)
        elif is_reset:
            self._replace(path, file, entry, "-", found)
        else:
            self._offer(path, file, entry)

    def _put(self, path: str, file: MaterialFile, entry: _Entry) -> None:
        self._make_parents(path)
        new = self._written(path, file)
        try:
            new.link(self.copy.at(path))
            content = _content(new.stat())
        except (FileNotFoundError, FileExistsError):
            raise _Raced from None
        finally:
            new.remove()
        self._settle(path, file, entry, content)

    def _replace(self, path: str, file: MaterialFile, entry: _Entry, present: str, found: os.stat_result) -> None:
        """`present`: what it is, which is deleted later; "-" if the user wrote it."""
        new = self._written(path, file)
        old = self.copy._old / f"{_key(path)}.{present}.{found.st_size}.{secrets.token_hex(4)}"
        try:
            self.copy.at(path).move(old)
            new.link(self.copy.at(path))
            content = _content(new.stat())
        except (FileNotFoundError, FileExistsError):
            raise _Raced from None
        except OSError:
            with suppress(OSError):
                old.link(self.copy.at(path))
                old.remove()
            raise
        finally:
            new.remove()
        self._settle(path, file, entry, content)
        if present == "-" or _content(old.stat()) != _content(found):
            self._check_old(old, path, present, found.st_size)

    def _settle(self, path: str, file: MaterialFile, entry: _Entry, content: tuple[int, ...]) -> None:
        """It has the content of the version, unless it was written since its status was `content`."""
        entry.blob, entry.size, entry.tries, entry.seen = file.blob, file.size, [], None
        self._withdraw_offer(path, entry)
        found = self.copy.stat(path)
        if found is not None and _content(found) == content:
            entry.seen = _seen(found)

    def _offer(self, path: str, file: MaterialFile, entry: _Entry) -> None:
        """Write the new version next to the edited file. An earlier offer that was not edited is removed."""
        if entry.offered is not None and entry.offered[1] == file.blob:
            return
        if file.blob == entry.blob:
            self._withdraw_offer(path, entry)  # it is the version that the user edited
            return
        new = self._written(path, file)
        try:
            name = self._link_beside(new, path, "new", self.version.published_at)
        finally:
            new.remove()
        self._withdraw_offer(path, entry)
        entry.offered = (name, file.blob, file.size)

    def _withdraw_offer(self, path: str, entry: _Entry) -> None:
        if entry.offered is None:
            return
        name, blob, size = entry.offered
        entry.offered = None
        place = _sibling(path, name)
        found = self.copy._found(place)
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return
        if self.copy.id_of(self.copy.at(place), size, blob) == blob:
            old = self.copy._old / f"{_key(place)}.{blob}.{size}.{secrets.token_hex(4)}"
            with suppress(FileNotFoundError):
                self.copy.at(place).move(old)

    # --- files that a delivery took away ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """Check the files that earlier rounds replaced: restore after a crash, keep late edits, remove the rest."""
        places = {_key(path): path for path in (*self.state.files, *self.version.files)}
        for name in self.copy._old.list_names():
            key, _, rest = name.partition(".")
            blob, _, rest = rest.partition(".")
            size = rest.partition(".")[0]
            path, old = places.get(key), self.copy._old / name
            entry = self.state.files.get(path) if path is not None else None
            if path is not None and entry is not None and entry.tries:
                with suppress(OSError):  # the round was interrupted
                    if self.copy.stat(path) is None:
                        self._make_parents(path)
                        old.link(self.copy.at(path))
                        old.remove()
                        continue
            self._check_old(old, path or f"recovered-{key[:8]}", blob, int(size) if size.isdigit() else -1, late=True)

    def _check_old(self, old: SafePath, path: str, blob: str, size: int, *, late: bool = False) -> None:
        """Remove it if it was not edited and is old enough; otherwise restore it next to `path`."""
        found = old.stat()
        is_file = stat.S_ISREG(found.st_mode)
        if blob != "-" and is_file and found.st_size == size and self.copy.id_of(old, size, blob) == blob:
            if late and time.time() - found.st_ctime > _LATE_S:
                old.remove()
            return
        if is_file:
            self._link_beside(old, path, "mine", self.at)
            old.remove()
        else:  # the user put a folder or a link in its place meanwhile
            self._make_parents(path)
            name = _dated(path.rpartition("/")[2], "mine", self.at, secrets.token_hex(4))
            old.move(self.copy.at(_sibling(path, name)))

    def _clear(self, path: str) -> bool:
        """Rename what is in the way of a file: a link, a folder in its place, or a file on the way to it."""
        parts = path.split("/")
        for number in range(1, len(parts) + 1):
            part = "/".join(parts[:number])
            try:
                found = self.copy.stat(part)
            except OSError:
                return False
            is_last = number == len(parts)
            if found is None or (stat.S_ISDIR(found.st_mode) and not is_last):
                continue
            if is_last and stat.S_ISREG(found.st_mode):
                return False
            name = _dated(parts[number - 1], "mine", self.at, secrets.token_hex(4))
            self.copy.at(part).move(self.copy.at(_sibling(part, name)))
            return True
        return False

    # --- names and content ------------------------------------------------------------------------------------------

    def _link_beside(self, file: SafePath, path: str, kind: str, at: float) -> str:
        """Rename the file to a dated name next to `path`; return the name."""
        self._make_parents(path)
        for number in range(1, 1000):
            name = _dated(path.rpartition("/")[2], kind, at, str(number) if number > 1 else "")
            try:
                file.link(self.copy.at(_sibling(path, name)))
            except FileExistsError:
                continue
            return name
        raise OSError(errno.EEXIST, "a thousand files with this name and date are there")

    def _make_parents(self, path: str) -> None:
        parts = path.split("/")
        for number in range(1, len(parts)):
            folder = self.copy.at("/".join(parts[:number]))
            if folder.make_folder(0o755):
                self.copy.give(folder)

    def _written(self, path: str, file: MaterialFile) -> SafePath:
        """A new file with the content of the version. Raises Damaged if that is not what git has."""
        new = self.copy._new / secrets.token_hex(8)
        owner = self.copy.home.stat()
        try:
            with (
                closing(self._opened(path)) as source,
                os.fdopen(new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target,
            ):
                digest, size = digest_of(file.size, file.blob), 0
                while part := source.read(CHUNK):
                    digest.update(part)
                    size += len(part)
                    if size > file.size:
                        break
                    target.write(part)
                if size != file.size or digest.hexdigest() != file.blob:
                    raise Damaged(path)
                target.flush()
                os.fchmod(target.fileno(), 0o755 if file.executable else 0o644)
                if os.geteuid() == 0:
                    os.fchown(target.fileno(), owner.st_uid, owner.st_gid)
        except BaseException:
            with suppress(OSError):
                new.remove()
            raise
        return new

    def _opened(self, path: str) -> Source:
        try:
            return self.read(path)
        except OSError as error:
            raise Damaged(path) from error


def _key(path: str) -> str:
    return hashlib.sha1(os.fsencode(path), usedforsecurity=False).hexdigest()


def _sibling(path: str, name: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


def _dated(name: str, kind: str, at: float, more: str) -> str:
    """`lab.ipynb` as `lab.new-20261124-140500.ipynb`."""
    stem, dot, ending = name.rpartition(".")
    if not stem:
        stem, dot, ending = name, "", ""
    date = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))
    tail = f".{kind}-{date}{f'-{more}' if more else ''}{dot}{ending}"
    room = 255 - len(os.fsencode(tail))
    return os.fsdecode(os.fsencode(stem)[: max(room, 1)]) + tail


def _seen(found: os.stat_result) -> tuple[int, ...]:
    """Numbers of which one changes with every change of a file. No user can set the last one."""
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _content(found: os.stat_result) -> tuple[int, ...]:
    """The same without what a rename changes."""
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _give_all(folder: SafePath, uid: int, gid: int) -> None:
    folder.chown(uid, gid)
    waiting = [folder]
    while waiting:
        one = waiting.pop()
        for name in one.list_names():
            below = one / name
            below.chown(uid, gid)
            if below.is_folder():
                waiting.append(below)


# --- the state as JSON ----------------------------------------------------------------------------------------------


def _json_of(state: _State) -> Mapping[str, Any]:
    files = {
        path: [one.blob, one.size, one.tries, one.seen, one.offered, one.blocked] for path, one in state.files.items()
    }
    return {"tree": state.tree, "commit": state.commit, "at": state.at, "files": files}


def _state_of(data: Any) -> _State:
    """Raises ValueError, TypeError, KeyError, AttributeError or OverflowError for anything else."""
    if len(data["files"]) > _MAX_STATE_FILES:
        raise ValueError("too many files")
    files = {}
    for path, (blob, size, tries, seen, offered, blocked) in data["files"].items():
        SafePath(_ROOT, tuple(path.split("/")))
        files[path] = _Entry(
            _hash(blob),
            int(size),
            [(_hash(one), int(much)) for one, much in tries],
            None if seen is None else tuple(int(one) for one in seen),
            None if offered is None else (_file_name(offered[0]), _hash(offered[1]), int(offered[2])),
            bool(blocked),
        )
    at = float(data["at"])
    return _State(_hash(data["tree"]), _hash(data["commit"]), at if 0 <= at < _MAX_TIME else 0.0, files)


def _hash(text: Any) -> str:
    if not isinstance(text, str) or len(text) not in (0, 40, 64) or not all(one in "0123456789abcdef" for one in text):
        raise ValueError("no id of git")
    return text


def _file_name(text: Any) -> str:
    SafePath(_ROOT, (str(text),))
    return str(text)
