"""Runs `gpu.cuda.probe` as a workload would run: with a share, in cgroups of its own. Used by `commonage doctor gpu`.

What is applied must be released also after SIGTERM. An exception that a signal handler raises inside a `finally` block
would skip the rest of its clean-up, so it is raised only where the program waits (`Termination`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commonage.domain.nodes import Share
from commonage.engines.process.groups.cgroups import find_cgroups
from commonage.engines.process.groups.groups import Groups
from commonage.gpu.environment import share_environment
from commonage.gpu.isolation.level import Level
from commonage.ports.devices import ShareAssignment

_JOIN = 'IFS=:; for group in $1; do echo 0 >"$group" || exit 125; done; shift; exec "$@"'
_WITHIN_S = 120.0
_KILLED_WITHIN_S = 1.0
_CPUS_MILLI, _MEMORY_MIB = 4000, 16 * 1024
Answer = Mapping[str, Any]


class Termination:
    """Raises SystemExit(128 + SIGTERM) in the main thread, once, at the first place that may be interrupted."""

    def __init__(self) -> None:
        self._asked = False
        self._may_raise = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for SIGTERM within the block; a SIGTERM always ends the block by SystemExit."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
            self._raise_if_asked()
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let SIGTERM end this block at once. The code that releases must know beforehand what the block applies."""
        self._may_raise = True
        try:
            self._raise_if_asked()
            yield
        finally:
            self._may_raise = False

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._asked = True
        if self._may_raise:
            self._may_raise = False
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._asked:
            raise SystemExit(128 + signal.SIGTERM)


def bare_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


@dataclass(frozen=True, slots=True)
class Place:
    """The environment of a probe: the folders of its cgroups (empty without cgroups), and its variables."""

    name: str
    groups: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, *words: str) -> list[str]:
        probe = [sys.executable, "-m", "commonage.gpu.cuda.probe", *words]
        files = ":".join(f"{folder}/cgroup.procs" for folder in self.groups)
        return ["/bin/sh", "-c", _JOIN, "sh", files, *probe] if files else probe


class Places:
    """Makes places, in cgroups where they are available, and removes all of them."""

    def __init__(self, groups: Groups | None) -> None:
        self._groups = groups
        self._made: list[str] = []

    @classmethod
    def here(cls) -> Places:
        return cls(find_cgroups(f"doctor-{os.getpid()}", 4096))

    def make(self, name: str) -> Place:
        if self._groups is None:
            return Place(name)
        self._made.append(name)
        files = self._groups.make(name, _CPUS_MILLI, _MEMORY_MIB)
        return Place(name, tuple(str(Path(file).parent) for file in files))

    def clear(self) -> None:
        """End the processes left in the places, and remove the places."""
        while self._groups is not None and self._made:
            name = self._made.pop()
            self._groups.kill(name)
            self._groups.remove(name)

    def close(self) -> None:
        """Refuse to make more places."""
        self.clear()
        if self._groups is not None:
            self._groups.close()


def ask(place: Place, *words: str, library: str = "", bare: bool = False) -> Answer:
    """Run the probe to its end. A missing answer is reported in `error`. `bare`: without the place's variables."""
    variables = bare_variables() if bare else {**bare_variables(), **place.variables}
    command = place.command(*words, *(("--library", library) if library else ()))
    try:
        ended = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error), "code": -1}
    return _answer(ended.stdout, ended.stderr)


def _answer(said: bytes, complained: bytes) -> Answer:
    lines = said.splitlines()
    with suppress(ValueError, IndexError):
        answer = json.loads(lines[-1])
        if "error" in answer:
            return dict(answer)
    words = complained.decode("utf-8", "replace").strip().splitlines()
    return {"error": words[-1] if words else "the probe ended without an answer", "code": -1}


class Burning:
    """A probe that computes until `end`, as the neighbor in a trial. `began` is False if it failed to start; then
    `end` returns the reason. Must be ended exactly once.
    """

    def __init__(self, place: Place, memory_mib: int, library: str = "") -> None:
        words = ["burn", "--max-mib", str(memory_mib), *(("--library", library) if library else ())]
        self._process = subprocess.Popen(
            place.command(*words),
            env={**bare_variables(), **place.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said = self._process.stdout
        assert said is not None
        try:
            # A broken driver may hang in its first call.
            self._first = said.readline() if select.select([said], [], [], _WITHIN_S)[0] else b""
        except BaseException:  # SystemExit: no caller has this object yet to end it
            self.kill()
            raise
        self.began = b'"ready"' in self._first
        if not self._first:
            self._process.kill()

    def end(self) -> Answer:
        """End it and return its result: `launches`, `seconds`, `error`."""
        try:
            said, complained = self._process.communicate(timeout=_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, complained = self._process.communicate()
        return _answer(said or self._first, complained)

    def kill(self) -> None:
        """Kill it. Idempotent."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver cannot be killed
            self._process.wait(_KILLED_WITHIN_S)


class Bench:
    """Applies shares and runs probes in them; SIGTERM ends it where it waits. `library`: a CUDA library, for tests."""

    def __init__(self, places: Places, termination: Termination, library: str = "") -> None:
        self._places, self._termination, self._library = places, termination, library

    def ask(self, place: Place, *words: str, bare: bool = False) -> Answer:
        with self._termination.interruptible():
            return ask(place, *words, library=self._library, bare=bare)

    def burn(self, place: Place, memory_mib: int = 0) -> Burning:
        with self._termination.interruptible():
            return Burning(place, memory_mib, self._library)

    def end(self, burning: Sequence[Burning], after_s: float = 0.0) -> list[Answer]:
        """End all of them after a pause, and return their results."""
        with self._termination.interruptible():
            time.sleep(after_s)
            return [probe.end() for probe in burning]

    @contextmanager
    def held(self, level: Level, share: Share, names: Sequence[str]) -> Iterator[list[Place]]:
        """Places of these names, each with such a share, for the time of the block. Raises EngineFailure."""
        assignments: list[ShareAssignment] = []
        places = []
        try:
            for name in names:
                place = self._places.make(f"doctor-{os.getpid()}-{name}")
                assignment = ShareAssignment(place.name, (share,), place.groups)
                assignments.append(assignment)
                with self._termination.interruptible():  # waits for a daemon that may not start
                    applied = level.apply(assignment)
                places.append(replace(place, variables={**share_environment([share]), **applied}))
            yield places
        finally:
            for assignment in assignments:
                level.release(assignment)
            self._places.clear()
