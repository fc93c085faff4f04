"""Folders of an attempt, created before its container: workspace, job folder, control folder, log, volumes. Called by
engines.

Everything here may be repeated after a crash: folders are created if they are missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import UnpackingFiles
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.files.control_folder import Owner, give
from commonage.engines.containers.files.job_folder import put_bundle
from commonage.engines.containers.files.volume_mounts import prepare_volume_folders
from commonage.engines.containers.program.program import ContainerNetwork, Program, program_of
from commonage.engines.containers.run import Run
from commonage.engines.rundir.unpacking import Unpacker, recorded_try
from commonage.engines.rundir.workspaces import make_workspace
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
    any node
    of the site can read it.
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
