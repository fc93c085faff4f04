"""Reads one branch of a git repository with the git program. Nothing is checked out and no hook of it runs.

Used by `commonage gitops` and by materials. Everything here blocks.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

_TIMEOUT_S = 120.0
_FETCH_TIMEOUT_S = 3600.0
_GUARD_EVERY_S = 0.25
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}")
_MAX_FILES = 500
_CHUNK = 1024 * 1024
_MAX_OUTPUT = 64 * 1024 * 1024  # of one command: a repository of a few kB can list a tree without end
_KEPT_ERRORS = 64 * 1024
_LOCK = "writer"
_LOCKED_FOR_S = 60.0
_LEFTOVERS = (
    *("**/*.lock", "gc.pid", "shallow_*"),
    *("objects/**/tmp_*", "objects/pack/.tmp-*", "objects/pack/*.keep"),
)
_PROGRESS = re.compile(r"(Receiving objects|Resolving deltas): +(\d+)%")
_NO_ERROR = re.compile(r"(remote: )?([A-Z][a-z]+ [a-z]+: +\d|(Enumerating|Total) )")
# git needs less than 100 MiB however large the files are. Only a file that the server sends as a delta needs twice its
# size more. By default git compares files of up to 512 MiB with ten others at once, in one thread for each core.
_CONFIG = (
    "core.bigFileThreshold=16m",  # larger files are streamed, not compared
    "core.packedGitWindowSize=16m",
    "core.packedGitLimit=64m",
    "core.deltaBaseCacheLimit=32m",
    "pack.threads=1",
    "pack.windowMemory=32m",
    "pack.deltaCacheSize=32m",
    "fetch.unpackLimit=1",  # packs are streamed, loose files are not
    "gc.autoDetach=false",  # in the background it would run without the lock
)
_SETTINGS = {
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # others can run any program
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
REMOTE_ONLY = {"GIT_ALLOW_PROTOCOL": "git:http:https:ssh"}
"""For repositories that others than the caller name: none on this machine's disk."""
Guard = Callable[[], None]
"""Called while git runs; what it raises ends git."""
Progress = Callable[[str, int], None]
"""Called with git's name of the step, `Receiving objects` or `Resolving deltas`, and its percentage."""


class GitFailed(Exception):
    """The repository cannot be read; the message is git's."""


class TooManyEntries(GitFailed):
    """The tree has more entries than asked for, or their names are too long together."""


class BranchMissing(GitFailed):
    """The repository has no such branch."""


def is_branch(name: str) -> bool:
    return bool(_BRANCH.fullmatch(name)) and ".." not in name


@dataclass(frozen=True, slots=True)
class GitAccess:
    """Credentials for one repository: a private SSH key in a file, and a token for HTTPS."""

    key: Path | None = None
    known_hosts: Path | None = None
    user: str = ""
    token: str = ""

    def variables(self, url: str) -> Mapping[str, str]:
        """Environment variables, as arguments of a program are visible to everybody on the machine."""
        found: dict[str, str] = {}
        if self.key is not None:
            options = [
                "-i",
                str(self.key),
                "-o",
                "IdentitiesOnly=yes",
                "-o",
                "BatchMode=yes",
                "-o",
                "ConnectTimeout=20",
            ]
            if self.known_hosts is not None:
                # The first key of a host is kept, and another one is refused later.
                options += ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={self.known_hosts}"]
            found["GIT_SSH_COMMAND"] = shlex.join(["ssh", *options])
        if self.token and url.startswith(("https://", "http://")):
            text = base64.b64encode(f"{self.user or 'git'}:{self.token}".encode()).decode()
            pairs = (
                (f"http.{_origin(url)}.extraHeader", f"Authorization: Basic {text}"),
                ("http.followRedirects", "false"),  # the header would be sent to the other server, too
            )
            found["GIT_CONFIG_COUNT"] = str(len(pairs))
            for number, (name, value) in enumerate(pairs):
                found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return found


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """An entry of a commit: `mode` as git writes it (100644, 100755, 120000, 160000), the object's id and its size."""

    path: str
    mode: str
    blob: str
    size: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of the repository at `url`, kept without a work tree in `folder`. `variables` are for git."""

    url: str
    name: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not is_branch(self.name):
            raise GitFailed(f"{self.name[:60]!r} is not the name of a branch")
        if self.url.startswith("-"):
            raise GitFailed(f"{self.url[:60]!r} is not the address of a repository")

    @property
    def source(self) -> str:
        """`git:REPO@BRANCH`, without credentials."""
        return f"git:{without_credentials(self.url)}@{self.name}"

    def newest(self, guard: Guard | None = None) -> str:
        """The newest commit of the branch, from its server. Nothing is fetched.

        Raises GitFailed, BranchMissing, and what `guard` raises.
        """
        self._make(guard)
        listed = self._git("ls-remote", "--", self.url, self._reference, guard=guard).decode(errors="replace")
        for line in listed.splitlines():
            commit, _, reference = line.partition("\t")
            if reference == self._reference and _COMMIT.fullmatch(commit):
                return commit
        raise BranchMissing(f"the repository has no branch {self.name}")

    def fetch(self, guard: Guard | None = None, progress: Progress | None = None) -> str:
        """Fetch the newest commit of the branch; return its id. Raises GitFailed, and what `guard` raises."""
        self._make(guard)
        refspec = f"+{self._reference}:{self._reference}"
        limit_s = _TIMEOUT_S if guard is None else _FETCH_TIMEOUT_S
        # "+": the newest commit counts, also after a force-push. With --progress, git ends when no process reads its
        # progress, so it does not outlive a killed server.
        command = ("fetch", "--progress", "--depth=1", "--no-tags", "--", self.url, refspec)
        with self._alone(guard) as lock:
            self._git(*command, limit_s=limit_s, guard=guard, progress=progress, lock=lock)
        commit = self._git("rev-parse", "--verify", f"{self._reference}^{{commit}}").decode().strip()
        if not _COMMIT.fullmatch(commit):
            raise GitFailed(f"git gave no commit of {self.name}: {commit[:60]!r}")
        return commit

    def files(self, commit: str, path: str, suffix: str) -> dict[str, bytes]:
        """The files of a commit below `path` whose names end in `suffix`, by path. Links are not followed."""
        place = path.strip("/")
        below = ["--", place] if place not in ("", ".") else []
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit, *below)
        found: dict[str, bytes] = {}
        for entry in listed.decode(errors="surrogateescape").split("\0"):
            about, _, name = entry.partition("\t")
            if about.startswith("100") and name.endswith(suffix):
                if len(found) == _MAX_FILES:
                    raise GitFailed(f"more than {_MAX_FILES} files below {path}")
                found[name] = self._git("cat-file", "blob", about.split()[2])
        return found

    def tree(self, commit: str, path: str) -> str | None:
        """The id of the folder `path` of a commit, "" being its root; None if it has no such folder."""
        name = f"{commit}:{path}" if path else f"{commit}^{{tree}}"
        try:
            found = self._git("rev-parse", "--verify", "--quiet", name).decode().strip()
            kind = self._git("cat-file", "-t", found).decode().strip()
        except GitFailed:
            return None
        return found if kind == "tree" else None

    def entries(self, tree: str, most: int) -> list[TreeEntry]:
        """All entries of a tree at any depth. The size of what is no file is 0. Raises GitFailed, TooManyEntries.

        git is ended at one entry more than `most`.
        """
        found: list[TreeEntry] = []
        read, rest = 0, b""
        for part in self._output("ls-tree", "-r", "-z", "-l", "--full-tree", tree):
            read += len(part)
            *lines, rest = (rest + part).split(b"\0")
            found += [_entry(one.decode(errors="surrogateescape")) for one in lines]
            if len(found) > most or read > _MAX_OUTPUT:
                raise TooManyEntries(f"more than {most} files, or names of more than {_MAX_OUTPUT} bytes")
        return found

    @contextmanager
    def reading(self) -> Iterator[BlobReader]:
        """Read many files from one process. Raises GitFailed."""
        process = self._popen(["--git-dir", str(self.folder), "cat-file", "--batch"], subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        try:
            yield BlobReader(process.stdin, process.stdout)
        finally:
            with suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            if process.stderr is not None:
                process.stderr.close()
            _end(process)

    def collect(self, guard: Guard | None = None) -> None:
        """Delete what no newest commit needs. Raises GitFailed, and what `guard` raises."""
        with self._alone(guard) as lock:
            self._git("reflog", "expire", "--expire=now", "--all", lock=lock)
            self._git("gc", "--quiet", "--prune=now", limit_s=_FETCH_TIMEOUT_S, guard=guard, lock=lock)

    @contextmanager
    def _alone(self, guard: Guard | None) -> Iterator[int]:
        """Let one git at a time write to the repository, without leftovers of an interrupted one; yields the lock.

        git and the programs that it starts inherit the lock, so it is held until the last of them ends, even if this
        process is killed. Raises GitFailed, and what `guard` raises.
        """
        try:
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GitFailed(f"{error}") from error
        try:
            deadline = time.monotonic() + _LOCKED_FOR_S
            while not _is_locked(lock):
                if guard is not None:
                    guard()
                if time.monotonic() > deadline:
                    raise GitFailed("git still works on an earlier fetch of this repository")
                time.sleep(_GUARD_EVERY_S)
            try:
                _remove_leftovers(self.folder)
            except OSError as error:
                raise GitFailed(f"files of an interrupted fetch cannot be removed: {error}") from error
            yield lock
        finally:
            os.close(lock)

    @property
    def _reference(self) -> str:
        return f"refs/heads/{self.name}"

    def _make(self, guard: Guard | None) -> None:
        # `init` makes this folder last. Without it, an earlier `init` was interrupted.
        if not (self.folder / "objects/info").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(guard) as lock:
                self._git("init", "--quiet", "--bare", str(self.folder), lock=lock)

    def _popen(self, arguments: Sequence[str], stdin: int, lock: int | None = None) -> subprocess.Popen[bytes]:
        config = [word for one in _CONFIG for word in ("-c", one)]
        try:
            return subprocess.Popen(
                ["git", *config, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **_SETTINGS, **self.variables},
                pass_fds=() if lock is None else (lock,),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise GitFailed("the program git is not installed") from None

    def _git(
        self,
        *arguments: str,
        limit_s: float = _TIMEOUT_S,
        guard: Guard | None = None,
        progress: Progress | None = None,
        lock: int | None = None,
    ) -> bytes:
        found = bytearray()
        for part in self._output(*arguments, limit_s=limit_s, guard=guard, progress=progress, lock=lock):
            found += part
            if len(found) > _MAX_OUTPUT:
                raise GitFailed(f"git {arguments[0]} gave more than {_MAX_OUTPUT} bytes")
        return bytes(found)

    def _output(
        self,
        *arguments: str,
        limit_s: float = _TIMEOUT_S,
        guard: Guard | None = None,
        progress: Progress | None = None,
        lock: int | None = None,
    ) -> Iterator[bytes]:
        """Yields git's output while it runs. Closing the iterator ends git."""
        where = ["--git-dir", str(self.folder)] if arguments[0] != "init" else []
        process = self._popen([*where, *arguments], subprocess.DEVNULL, lock)
        said, deadline, guarded = b"", time.monotonic() + limit_s, time.monotonic()
        assert process.stdout is not None and process.stderr is not None
        try:
            with selectors.DefaultSelector() as waiting:
                waiting.register(process.stdout, selectors.EVENT_READ)
                waiting.register(process.stderr, selectors.EVENT_READ)
                while waiting.get_map():
                    for key, _ in waiting.select(_GUARD_EVERY_S):
                        part = os.read(key.fd, _CHUNK)
                        if not part:
                            waiting.unregister(key.fileobj)
                        elif key.fileobj is process.stderr:
                            said = (said + part)[-_KEPT_ERRORS:]
                            if progress is not None:
                                _tell(progress, part)
                        else:
                            yield part
                    now = time.monotonic()
                    if guard is not None and now - guarded >= _GUARD_EVERY_S:
                        guarded = now
                        guard()
                    if now > deadline:
                        raise GitFailed(f"git {arguments[0]} took longer than {limit_s:.0f} s")
            process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {arguments[0]} took longer than {limit_s:.0f} s") from None
        finally:
            _end(process)
            process.stdout.close()
            process.stderr.close()
        if process.returncode:
            text = _errors_in(said).replace(self.url, without_credentials(self.url))
            raise GitFailed(text[-1000:] or f"git {arguments[0]} failed")


@dataclass(frozen=True, slots=True)
class BlobReader:
    _questions: IO[bytes]
    _answers: IO[bytes]

    def chunks(self, blob: str) -> Iterator[bytes]:
        """The content of a file. It must be read to its end. Raises GitFailed."""
        try:
            self._questions.write(f"{blob}\n".encode())
            self._questions.flush()
            header = self._answers.readline().split()
            if len(header) != 3 or header[1] != b"blob":
                raise GitFailed(f"git has no file {blob}")
            left = int(header[2])
            while left:
                part = self._answers.read(min(left, _CHUNK))
                if not part:
                    raise GitFailed(f"git gave only a part of {blob}")
                left -= len(part)
                yield part
            self._answers.read(1)  # the line end after it
        except (BrokenPipeError, ConnectionError) as error:
            raise GitFailed(f"git ended while {blob} was read") from error


def _entry(line: str) -> TreeEntry:
    about, _, path = line.partition("\t")
    mode, _, blob, size = about.split()
    return TreeEntry(path, mode, blob, int(size) if size.isdigit() else 0)


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove locks and unfinished files of an interrupted git. The caller holds the lock. Raises OSError."""
    packs = folder.glob("objects/pack/*.pack")
    left = [one for one in packs if not one.with_suffix(".idx").exists()]
    for pattern in _LEFTOVERS:
        left += folder.glob(pattern)
    for one in left:
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)


def _tell(progress: Progress, text: bytes) -> None:
    found = _PROGRESS.findall(text.decode(errors="replace"))
    if found:
        step, percent = found[-1]
        progress(step, int(percent))


def _errors_in(text: bytes) -> str:
    """The lines that are not progress."""
    lines = re.split(r"[\r\n]+", text.decode(errors="replace"))
    return "\n".join(one for one in lines if not _NO_ERROR.match(one)).strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git and the programs that it started, such as ssh."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"


def without_credentials(url: str) -> str:
    """The address as it may be shown."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
