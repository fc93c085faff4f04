"""Python environments of a process site: created on first use, under a name derived from their contents.

    environments/<name>-<digest>/   a virtual environment, ready once it holds the file `.ready`
    environments/<name>-<digest>/kernels/<kernel>/   the virtual environment of a kernel
    environments/<name>-<digest>/.sessions   its time stamp is the last start of a session in it
    environments/<name>-<digest>/.used       its time stamp is the last start of anything in it
    environments/<name>-<digest>.lock

It is built in place, because its scripts contain the absolute path of their interpreter. A folder without
`.ready` was left by a crash, and is built again. A folder whose environment has a newer one is removed when it was not
used for a month. uv itself holds the lock, so that no second build runs next
to one that outlived its control plane. Used by the engine only.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from commonage.domain.codec import from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.images import Contents, Environment, EnvironmentState, EnvironmentStatus, PythonKernel
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import EnvironmentFailed, PreparingEnvironment
from commonage.domain.statuses import StartRequest
from commonage.engines.process.contents import read_contents
from commonage.engines.process.uv import Step, kernel_folder, make_environment
from commonage.engines.rundir.tasks import SingleFlight
from commonage.files.kernels import packages_script, start_script
from commonage.ports.agents import OnProgress

_READY = ".ready"
_REMOVING = ".removing"
_CONTENTS = ".contents.json"
_SESSIONS = ".sessions"
_USED = ".used"
_LATELY_S = 14 * 24 * 3600
_REPLACED_KEPT_S = 30 * 24 * 3600
_LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A ready Python environment: the folder of its programs, and its root if it is a virtual one.

    `kernel` is the virtual environment of its first kernel, if it has kernels.
    """

    programs: Path
    root: Path | None
    kernel: Path | None = None

    def remembered(self, request: StartRequest) -> StartRequest:
        """The request with this environment: its interpreter replaces the list that it was created from."""
        if not (request.environment.requirements or request.environment.kernels):
            return request
        kernels = tuple(replace(one, requirements=()) for one in request.environment.kernels)
        python = str(self.programs / "python")
        here = replace(request.environment, requirements=(), kernels=kernels, python=python)
        return replace(request, environment=here)


@lru_cache(maxsize=256)
def digest_of(requirements: tuple[str, ...], kernels: tuple[PythonKernel, ...] = (), python: str = sys.version) -> str:
    """Twelve characters that differ if the declared lists, the start of kernels or the interpreter do."""
    lists = (part for one in kernels for part in (f"kernel {one.name}", str(one.wheels_only), *one.requirements))
    ours = (start_script("", ""), packages_script()) if kernels else ()
    return hashlib.sha256("\0".join((python, *requirements, *lists, *ours)).encode()).hexdigest()[:12]


class Environments:
    """All environments below `root`. `variables` are uv's."""

    def __init__(self, root: Path, site: str, variables: Mapping[str, str]) -> None:
        self._root = root.resolve()  # installations that share a folder by symbolic links use each other's environments
        self._site = site
        self._variables = variables
        self._builds = SingleFlight[PythonEnvironment]()
        self._statuses: dict[str, EnvironmentStatus] = {}
        self._contents: dict[Path, Contents | None] = {}

    def open(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for marker in self._root.glob(f"*/{_READY}"):
            self._is_ready(marker.read_text(encoding="utf-8").strip(), marker.parent)

    async def close(self) -> None:
        """Cancel builds in progress; the next use builds them."""
        await self._builds.close()

    def statuses(self) -> list[EnvironmentStatus]:
        return list(self._statuses.values())

    def note_session(self, place: PythonEnvironment) -> None:
        """Record that sessions run in it, or soon will, so that it is kept ready for them."""
        if place.root is not None and place.root.parent == self._root:
            with suppress(OSError):  # only costs a second if it fails
                (place.root / _SESSIONS).touch()

    def used_by_sessions(self, now: float) -> list[Path]:
        """Program folders of ready environments in which a session was started in the last two weeks."""
        markers = sorted(self._root.glob(f"*/{_SESSIONS}"))
        fresh = [marker.parent for marker in markers if now - marker.stat().st_mtime < _LATELY_S]
        return [folder / "bin" for folder in fresh if (folder / _READY).exists()]

    def ready(self, environment: Environment) -> PythonEnvironment | None:
        """None if the environment must be built first. Raises EngineFailure if it can never be built."""
        if environment.python is not None:
            return self._existing(environment, Path(environment.python))
        if environment.image is not None and not (environment.requirements or environment.kernels):
            raise EngineFailure(
                f"environment {environment.name} is a container image; this site runs plain processes only"
            )
        folder = self._folder(environment)
        if not (folder / _READY).exists():
            return None
        with suppress(OSError):  # without its time stamp, a replaced environment is removed sooner
            (folder / _USED).touch()
        self._is_ready(environment.name, folder)
        return _place(folder, environment)

    def remove_replaced(self, now: float, in_use: Collection[Environment]) -> list[Path]:
        """Remove the folders of replaced environments that were not used for a month. Returns them. Raises OSError.

        `in_use` are the environments of attempts that have not ended.
        """
        built: dict[str, list[tuple[float, Path]]] = {}
        for marker in self._root.glob(f"*/{_READY}"):
            name = marker.read_text(encoding="utf-8").strip()
            built.setdefault(name, []).append((marker.stat().st_mtime, marker.parent))
        replaced = [folder for folders in built.values() for _, folder in sorted(folders)[:-1]]
        replaced += [marker.parent for marker in self._root.glob(f"*/{_REMOVING}")]
        used = [Path(one.python).parent.resolve() if one.python is not None else self._folder(one) for one in in_use]
        idle = [folder for folder in replaced if not any(one.is_relative_to(folder) for one in used)]
        return [folder for folder in idle if self._remove_unused(folder, now - _REPLACED_KEPT_S)]

    def _remove_unused(self, folder: Path, before: float) -> bool:
        marker, removing = folder / _READY, folder / _REMOVING
        lock = os.open(folder.with_name(folder.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _last_use(folder) >= before:
                return False
            if not removing.exists():  # else a crash interrupted the removal
                marker.rename(removing)  # from now on nothing starts in it
            if _last_use(folder) >= before:  # something started in it a moment ago
                removing.rename(marker)
                return False
            shutil.rmtree(folder)
        except BlockingIOError:  # it is being built
            return False
        finally:
            os.close(lock)
        self._contents.pop(folder, None)
        return True

    async def ensure(self, environment: Environment, on_progress: OnProgress) -> PythonEnvironment:
        """Return the environment, building it if needed.

        Calls `on_progress` with its progress. Raises EngineFailure; the next call tries again.
        """
        place = self.ready(environment)
        if place is not None:
            return place
        folder = self._folder(environment)
        return await self._builds.do(folder.name, partial(self._build, environment, folder), on_progress)

    async def _build(self, environment: Environment, folder: Path, on_progress: OnProgress) -> PythonEnvironment:
        name = environment.name

        def tell(step: str, progress: float | None) -> None:
            preparing = PreparingEnvironment(environment=name, step=step)
            self._stands(name, EnvironmentState.BUILDING, preparing, progress)
            on_progress(preparing, progress)

        lock = os.open(folder.with_name(folder.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await self._lock(lock, tell)
            if not (folder / _READY).exists():
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                await make_environment(folder, environment, self._variables, lock, tell)
                await asyncio.to_thread(self._finish, folder, environment)
        except EngineFailure as error:
            raise self._failed(name, error.message, retryable=True) from error
        except OSError as error:
            raise self._failed(name, f"in {folder}: {error.strerror}", retryable=True) from error
        finally:
            os.close(lock)
        self._is_ready(name, folder)
        return _place(folder, environment)

    async def _lock(self, descriptor: int, tell: Step) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for a build that began earlier", None)
                await asyncio.sleep(_LOCK_POLL_S)
            else:
                return

    def _existing(self, environment: Environment, python: Path) -> PythonEnvironment:
        if not os.access(python, os.X_OK):
            raise self._failed(environment.name, f"it needs {python}, which is not a program here", retryable=False)
        self._stands(environment.name, EnvironmentState.READY)
        root = python.parent.parent.resolve()
        place = _place(root, environment)
        return place if (root / "pyvenv.cfg").exists() else replace(place, programs=python.parent, root=None)

    @staticmethod
    def _finish(folder: Path, environment: Environment) -> None:
        found = read_contents(folder, [one.name for one in environment.kernels])
        (folder / _CONTENTS).write_text(json.dumps(to_json(found)), encoding="utf-8")
        (folder / _READY).write_text(environment.name + "\n", encoding="utf-8")

    @staticmethod
    def _read_contents(folder: Path) -> Contents | None:
        """None for an environment of an earlier version, or a damaged file: it is only shown."""
        try:
            return from_json(Contents, json.loads((folder / _CONTENTS).read_text(encoding="utf-8")))
        except (OSError, ValueError, CommonageError):
            return None

    def _folder(self, environment: Environment) -> Path:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", environment.name).lstrip(".")[:64]
        return self._root / f"{name}-{digest_of(environment.requirements, environment.kernels)}"

    def _failed(self, name: str, error: str, *, retryable: bool) -> EngineFailure:
        why = EnvironmentFailed(environment=name, error=error)
        self._stands(name, EnvironmentState.FAILED, why)
        return EngineFailure(why, retryable=retryable)

    def _is_ready(self, name: str, folder: Path) -> None:
        if folder not in self._contents:
            self._contents[folder] = self._read_contents(folder)
        self._statuses[name] = EnvironmentStatus(
            name, self._site, EnvironmentState.READY, contents=self._contents[folder]
        )

    def _stands(
        self, name: str, state: EnvironmentState, reason: Reason | None = None, progress: float | None = None
    ) -> None:
        self._statuses[name] = EnvironmentStatus(name, self._site, state, reason, progress)


def _last_use(folder: Path) -> float:
    """When something started in it, or it was built."""
    times = [one.stat().st_mtime for name in (_USED, _SESSIONS, _CONTENTS) if (one := folder / name).exists()]
    return max(times, default=folder.stat().st_mtime)


def _place(folder: Path, environment: Environment) -> PythonEnvironment:
    first = next((kernel_folder(folder, one.name) for one in environment.kernels), None)
    return PythonEnvironment(folder / "bin", folder, first)
