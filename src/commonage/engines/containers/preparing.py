"""The folders of an attempt, made before its container is: workspace, job folder, box, log, volumes. In threads.

Everything here may be done again after a crash: folders are made if they are missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import Order
from commonage.engines.common.workspaces import make_workspace
from commonage.engines.containers.board import Run
from commonage.engines.containers.box import Owner, give
from commonage.engines.containers.folders import put_bundle
from commonage.engines.containers.mounts import see_to_folders
from commonage.engines.containers.program import Inside, Program, program_of

ENTRY = (Path(__file__).parent / "entry.sh").read_text(encoding="utf-8")
"""The first program in each container: runs the attempt's command, at most once."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is the same for all containers of an installation. `here`: they run on the control plane's machine."""

    installation: str
    workspaces: Path
    shared: Mapping[str, str]
    bundle_max_mib: int
    here: bool


def ourselves() -> Owner:
    """Root inside where we are root; else our own user, so that what it writes is ours to remove."""
    uid, gid = os.geteuid(), os.getegid()
    return Owner(uid, gid, uid, gid)


def check(order: Order) -> None:
    """Raises EngineFailure for an order that can never be one of a container."""
    words = [*order.command, *(text for pair in (*order.variables, *order.secrets) for text in pair)]
    if any("\0" in word for word in words):
        raise EngineFailure(f"{order.workload_id} has a zero byte in its command or variables")
    program_of(order, Inside("", frozenset()), {}, {})


def have_folders(run: Run, program: Program, place: Place, owner: Owner, wish: bool = False) -> Path:
    """Have them all there; gives the workspace. Raises EngineFailure.

    `wish`: with a file in its box by which it can be asked to end.
    """
    order = run.order
    workspace = make_workspace(place.workspaces, order.owner)
    try:
        give(workspace, owner)
        if order.bundle_path is not None:
            bundle, staging = Path(order.bundle_path), run.folder.path / "files"
            put_bundle(bundle, staging, workspace, order.workload_id, owner, place.bundle_max_mib)
        run.box.make(program.secrets, owner, wish=wish)
        give(run.folder.log, owner)
        see_to_folders(order.mounts, workspace, owner, here=place.here)
    except OSError as error:
        raise EngineFailure(f"its folders cannot be made: {error}", retryable=True) from error
    return workspace
