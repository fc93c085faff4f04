"""Sessions that start warm: one waiting parent (zygote.py) for each environment that sessions run in.

Called by the launcher, in threads. If there is no warm parent, it fails, or a fork would differ from a fresh process,
the answer is None and the session is started cold like any program; so only speed depends on this. A parent takes about
130 MiB, and each session shares most of that. A session's own limit still applies to what it allocates itself.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from commonage.engines.process.processes import boot_id
from commonage.engines.process.translate import Program
from commonage.engines.rundir.preloading import UNSEEN, WITHOUT_EFFECT
from commonage.engines.rundir.programs import PRELOADING, SERVING

log = logging.getLogger(__name__)
PROGRAM = "jupyterhub-singleuser"
PARENTS_MAX = 4
FAILURES_MAX = 3
COMES_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 5.0
_ZYGOTE = str(Path(__file__).with_name("zygote.py"))
_ROOM_FOR_A_NAME = 1000
_GPU_SITE = (
    "COMMONAGE_GPU_SITE"  # the folder whose sitecustomize limits frameworks: no effect on a server, which uses none
)


@dataclass(slots=True, eq=False)
class _Parent:
    """`ready` yields the variables that it has read, or None if it failed. `lock` guards the link."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    stamp: tuple[int, ...]
    ready: Future[frozenset[str] | None] = field(default_factory=Future)
    lock: threading.Lock = field(default_factory=threading.Lock)


class WarmSessions:
    """The warm parents, by the folder of the environment's programs. Thread safe.

    `variables` are those that every workload gets; the parents are started with them.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = {"LANG": "C.UTF-8", **variables, "HOME": "/nonexistent", "PYTHONUNBUFFERED": "1"}
        self._parents: dict[Path, _Parent] = {}  # least recently used first
        self._failures: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._closed = False

    def prepare(self, programs: Path) -> Future[frozenset[str] | None] | None:
        """Start a parent for the environment with these programs, unless it exists or is impossible.

        Returns a future that is done when it is ready or failed; None if there is nothing to wait for. Waiting costs
        nothing: the parent does the same work as a cold start.
        """
        with self._lock:
            return self._prepare(programs)

    def _prepare(self, programs: Path) -> Future[frozenset[str] | None] | None:
        parent, stamp = self._parents.get(programs), _stamp(programs)
        if parent is not None and (parent.stamp != stamp or parent.process.poll() is not None):
            # It is gone, or the installed modules changed since it imported them.
            if parent.process.poll() is not None and not parent.ready.done():
                self._failures[programs] = self._failures.get(programs, 0) + 1
            self._end(programs)
            parent = None
        if parent is None:
            if self._closed or self._failures.get(programs, 0) >= FAILURES_MAX or not _can_be_warm(programs):
                return None
            parent = self._begin(programs, stamp)
        return None if parent is None or parent.ready.done() else parent.ready

    def _begin(self, programs: Path, stamp: tuple[int, ...]) -> _Parent | None:
        while len(self._parents) >= PARENTS_MAX:
            self._end(next(iter(self._parents)))
        try:
            parent = _spawn_parent(programs, self._started_with(programs), stamp)
        except OSError as error:
            log.warning("no warm parent for the sessions in %s: %s", programs, error)
            return None
        self._parents[programs] = parent
        threading.Thread(target=self._listen, args=(programs, parent), daemon=True).start()
        return parent

    def spawn(self, programs: Path, run: Path, groups: Sequence[str], program: Program, cwd: Path) -> int | None:
        """Fork a session for the run folder; return its keeper's pid, or None if it must be started cold."""
        ask = {
            "run": str(run),
            "boot": boot_id(),
            "groups": list(groups),
            "program": program.command[0],
            "arguments": list(program.command[1:]),
            "variables": dict(program.variables),
            "cwd": str(cwd),
        }
        for is_last in (False, True):
            parent = self._fit_for(programs, groups, program)
            if parent is None:
                return None
            try:
                pid = _fork(parent, ask)
            except (OSError, ValueError) as error:
                # It may have forked anyway: the claim in the run folder ensures that only one of the two runs.
                if is_last or isinstance(error, (TimeoutError, ValueError)):
                    self._give_up(programs, parent, str(error))
                    return None
                # Its end of the link is closed, so it was killed. That is no fault of the environment.
                self._replace(programs, parent)
            else:
                self._note_use(programs)
                return pid or None
        return None

    def _replace(self, programs: Path, parent: _Parent) -> None:
        """Start a successor, unless another thread did that."""
        with self._lock:
            if self._parents.get(programs) is parent:
                self._end(programs)
            self._prepare(programs)

    def _fit_for(self, programs: Path, groups: Sequence[str], program: Program) -> _Parent | None:
        """The parent whose fork equals a fresh start of this program; None if it has none."""
        with self._lock:
            parent = self._parents.get(programs)
        if parent is None or not groups:  # without cgroups a fork could not be distinguished from its parent
            return None
        read = parent.ready.result()
        if read is None or not may_fork(program, programs, self._started_with(programs), read):
            return None
        return parent

    def _note_use(self, programs: Path) -> None:
        with self._lock:
            self._failures.pop(programs, None)
            if programs in self._parents:
                self._parents[programs] = self._parents.pop(programs)

    def close(self) -> None:
        """End the parents; the sessions continue."""
        with self._lock:
            self._closed = True
            for programs in list(self._parents):
                self._end(programs)

    def _listen(self, programs: Path, parent: _Parent) -> None:
        """Wait until it is ready, in a thread of its own."""
        read: frozenset[str] | None = None
        why = ""
        with parent.lock:
            try:
                parent.link.settimeout(COMES_WITHIN_S)
                said = json.loads(_read_line(parent.link))
                why = said.get("refused", "")
                read = None if why else frozenset(said["read"])
            except (OSError, ValueError) as error:
                why = str(error)
        if read is None:
            self._give_up(programs, parent, why)
        parent.ready.set_result(read)

    def _give_up(self, programs: Path, parent: _Parent, why: str) -> None:
        with self._lock:
            if self._parents.get(programs) is not parent:
                return
            self._end(programs)
            self._failures[programs] = self._failures.get(programs, 0) + 1
            rest = "no more of them" if self._failures[programs] >= FAILURES_MAX else "the next will be tried"
            log.warning("the warm parent of %s failed, sessions there start cold (%s): %s", programs, rest, why)

    def _end(self, programs: Path) -> None:
        parent = self._parents.pop(programs)
        parent.process.kill()
        parent.process.wait()
        with suppress(OSError):
            parent.link.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for its answer
        with parent.lock:
            parent.link.close()

    def _started_with(self, programs: Path) -> dict[str, str]:
        return {**self._variables, "PATH": f"{programs}:/usr/bin:/bin"}


def may_fork(program: Program, programs: Path, started_with: Mapping[str, str], read: frozenset[str]) -> bool:
    """True if a fork of a parent `started_with` these variables, which `read` some of them, equals a fresh start."""
    theirs = program.variables
    if program.command[0] != PROGRAM or theirs.get("PATH", "").partition(":")[0] != str(programs) or "*" in read:
        return False
    if any("\0" in text for text in (*program.command, *theirs, *theirs.values())) or any(
        "=" in name for name in theirs
    ):
        return False  # the cold start reports the error
    unseen = {name for name in (*theirs, *started_with) if name.startswith(UNSEEN) and name not in WITHOUT_EFFECT}
    if theirs.get("PYTHONPATH", "") == theirs.get(_GPU_SITE):
        unseen.discard("PYTHONPATH")
    return all(theirs.get(name) == started_with.get(name) for name in unseen | read)


def _can_be_warm(programs: Path) -> bool:
    """True for an isolated virtual environment with our program: HOME must not affect its module search path."""
    try:
        settings = (programs.parent / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    pairs = {name.strip().lower(): value.strip().lower() for name, _, value in _pairs(settings)}
    return pairs.get("include-system-site-packages") != "true" and (programs / PROGRAM).exists()


def _pairs(settings: str) -> list[tuple[str, str, str]]:
    return [line.partition("=") for line in settings.splitlines()]


def _stamp(programs: Path) -> tuple[int, ...]:
    """Changes when something was installed or removed."""
    places = [programs / PROGRAM, *sorted(programs.parent.glob("lib/python*/site-packages"))]
    found = []
    for place in places:
        with suppress(OSError):
            found.append(place.stat().st_mtime_ns)
    return tuple(found)


def _spawn_parent(programs: Path, variables: Mapping[str, str], stamp: tuple[int, ...]) -> _Parent:
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                # In a session of its own, so that Ctrl-C does not reach it.
                [str(programs / "python"), "-I", "-u", _ZYGOTE, str(SERVING), str(PRELOADING), " " * _ROOM_FOR_A_NAME],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(variables),
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return _Parent(process, ours, stamp)


def _fork(parent: _Parent, ask: Mapping[str, object]) -> int:
    """The keeper's pid, or 0 if it could not fork. Raises OSError, ValueError if it does not answer."""
    with parent.lock:
        parent.link.settimeout(ANSWERS_WITHIN_S)
        parent.link.sendall(json.dumps(ask).encode() + b"\n")
        return int(_read_line(parent.link))


def _read_line(link: socket.socket) -> bytes:
    """A line, which is sent whole. Raises ConnectionError when the other side is gone."""
    line = b""
    while not line.endswith(b"\n"):
        part = link.recv(65536)
        if not part:
            raise ConnectionResetError("it ended")
        line += part
    return line
