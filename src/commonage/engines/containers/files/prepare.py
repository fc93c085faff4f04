"""Folders and files of an attempt, created before its container: workspace, job folder, control folder, our own files.

Called by engines. Everything here may be repeated after a crash: folders are created if they are missing. If a
container could make the server follow a link, it could write anywhere with the server's rights. So a job's files are
unpacked where no container sees them, and moved in as a whole, by open folders and names, never by a path.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import UnpackingFiles
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.files.control_folder import Owner, give
from commonage.engines.containers.files.mounts import prepare_volume_folders
from commonage.engines.containers.program import ContainerNetwork, Program, program_of
from commonage.engines.rundir.unpacking import Unpacker, recorded_try
from commonage.engines.rundir.workspaces import make_workspace
from commonage.files.injected import JUPYTER, PYTHON
from commonage.files.safe_path import SafePath
from commonage.ports.agents import OnProgress

ENTRY = (Path(__file__).parent / "entry.sh").read_text(encoding="utf-8")
"""First program in each container: runs the attempt's command, at most once."""


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """Properties that all containers of an installation share. `is_local`: they run on the control plane's node."""

    installation: str
    workspaces: SafePath
    shared: Mapping[str, str]
    unpacker: Unpacker
    is_local: bool


def ourselves() -> Owner:
    """Root inside if the server is root; else the server's own user, so that it can remove the container's files."""
    uid, gid = os.geteuid(), os.getegid()
    return Owner(uid, gid, uid, gid)


def check(request: StartRequest) -> None:
    """Raises EngineFailure for a request that can never run in a container."""
    words = [*request.command, *(text for pair in (*request.variables, *request.secrets) for text in pair)]
    if any("\0" in word for word in words):
        raise EngineFailure(f"{request.workload_id} has a zero byte in its command or variables")
    program_of(request, ContainerNetwork("", frozenset()), {}, {})


async def prepare_files(run: Run, defaults: ContainerDefaults, owner: Owner, on_progress: OnProgress) -> None:
    """Put the files that were sent along in the folder of the job. Raises EngineFailure."""
    request = run.request
    if request.bundle_path is None:
        return
    bundle = Path(request.bundle_path)

    def put() -> None:
        workspace = make_workspace(defaults.workspaces, request.owner)
        try:
            give(workspace, owner)
            with recorded_try(run.folder.path):
                staging = run.folder.path / "files"
                put_bundle(workspace, request.workload_id, staging, owner, partial(defaults.unpacker.unpack, bundle))
        except OSError as error:
            raise EngineFailure(f"its files cannot be unpacked: {error}", retryable=True) from error

    on_progress(UnpackingFiles(), None)
    await defaults.unpacker.run(request.owner, put)


def prepare_folders(run: Run, program: Program, defaults: ContainerDefaults, owner: Owner) -> Path:
    """Create all folders except the files; return the workspace. In a thread. Raises EngineFailure.

    If containers run elsewhere, the control folder has a file by which one can be asked to end, and no secrets: root on
    any node of the site can read it.
    """
    request = run.request
    secrets = program.secrets if defaults.is_local else {}
    workspace = make_workspace(defaults.workspaces, request.owner)
    try:
        give(workspace, owner)
        run.control_folder.make(secrets, owner, stop=not defaults.is_local)
        give(run.folder.log, owner)
        prepare_volume_folders(request.mounts, workspace, owner, is_local=defaults.is_local)
    except OSError as error:
        raise EngineFailure(f"its folders cannot be made: {error}", retryable=True) from error
    return workspace.path


def put_bundle(workspace: SafePath, name: str, staging: Path, owner: Owner, unpack: Callable[[Path], None]) -> None:
    """Put the files of a bundle in `workspace`/jobs/`name`; an existing folder stays unchanged.

    `staging` is a private folder of the server, which `unpack` fills. Raises EngineFailure.
    """
    jobs = workspace / "jobs"
    try:
        if jobs.make_folder():
            give(jobs, owner)
        if (jobs / name).exists():
            return
        shutil.rmtree(staging, ignore_errors=True)
        unpack(staging)
        _give_all(staging, owner)
        try:
            _move_in(staging, jobs / name, owner)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        # A link or a file in its place was made by its owner, and is not a temporary error.
        passes = error.errno not in (errno.ELOOP, errno.ENOTDIR)
        raise EngineFailure(
            f"the folder of the job cannot be made in {workspace}: {error}", retryable=passes
        ) from error


def _give_all(folder: Path, owner: Owner) -> None:
    if owner.host_uid != os.geteuid():
        for parent, _, files in os.walk(folder):
            for one in (".", *files):
                os.chown(Path(parent, one), owner.host_uid, owner.host_gid, follow_symlinks=False)


def _move_in(folder: Path, target: SafePath, owner: Owner) -> None:
    """Move a folder in atomically; an existing one stays. On another file system it is copied."""
    try:
        SafePath(folder.parent, (folder.name,)).move(target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            _copy_in(folder, target, owner)
        elif error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _copy_in(folder: Path, target: SafePath, owner: Owner) -> None:
    new = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    try:
        _copy(folder, new, owner)
        new.move(target)
    except OSError as error:
        new.remove()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _copy(folder: Path, new: SafePath, owner: Owner) -> None:
    """Copies plain files and folders only, which is all that a bundle has."""
    waiting = [(folder, new)]
    while waiting:
        folder, new = waiting.pop()
        new.make_folder()
        give(new, owner)
        for one in os.scandir(folder):
            if one.is_dir(follow_symlinks=False):
                waiting.append((Path(one.path), new / one.name))
            else:
                _copy_file(one, new / one.name)
                give(new / one.name, owner)


def _copy_file(file: os.DirEntry[str], new: SafePath) -> None:
    mode = file.stat(follow_symlinks=False).st_mode & 0o700
    descriptor = new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as target, open(file.path, "rb") as source:
        shutil.copyfileobj(source, target)


INJECTED_INSIDE = "/run/commonage"
"""The parent of these folders in the container."""
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644  # the user inside may be another one outside
_FILES = {
    PYTHON: ("sitecustomize.py",),
    JUPYTER: (
        "labconfig/default_setting_overrides.json",
        "jupyter_server_config.py",
        "commonage_jobs.py",
        "commonage_magic.py",
        "commonage_server.py",
        "startup.py",
        "labextensions/commonage/package.json",
        "labextensions/commonage/static/run_as_job.js",
        "commonage_session.py",
        "labextensions/@commonage/session/package.json",
        "labextensions/@commonage/session/static/remoteEntry.js",
        "apps.json",
        "templates/500.html",
        "start_app.py",
        "desktop.sh",
    ),
}


def folders_of(request: StartRequest) -> tuple[Path, ...]:
    limited = any(not share.whole for share in request.allocation.shares)
    return (*([PYTHON] if limited else []), *([JUPYTER] if request.kind is Kind.SESSION else []))


def files_of(request: StartRequest) -> Iterator[tuple[str, str, str]]:
    """The same as files: name of the folder, path in the container, and text."""
    for folder in folders_of(request):
        for name in _FILES[folder]:
            yield folder.name, f"{INJECTED_INSIDE}/{folder.name}/{name}", (folder / name).read_text(encoding="utf-8")


def put_in(place: Path) -> None:
    """Put all of them in `place`, for a daemon that does not see where this program is installed. Raises OSError."""
    for folder, names in _FILES.items():
        for name in names:
            target = place / folder.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            for above in (one for one in target.parents if one.is_relative_to(place / folder.name)):
                above.chmod(_FOLDER_MODE)
            fresh = target.with_name(f".{target.name}.new")
            fresh.unlink(missing_ok=True)
            fresh.write_bytes((folder / name).read_bytes())
            fresh.chmod(_FILE_MODE)
            fresh.replace(target)  # running containers have the folder mounted, and see the new file
