"""Volumes of workloads that are processes of this node: nothing is mounted, links in the home lead to them.

The server's account determines what the processes may do with a folder: neither read-only nor a size is enforced. The
links only give the paths; access was decided before. Called in threads by the launcher.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.rundir.workspaces import FOLDER, link_volumes
from commonage.files.safe_path import SafePath


def link_request_volumes(mounts: Sequence[Mount], home: Path, tmp: Path) -> dict[str, str]:
    """Link all volumes in `home`; return their paths by name. Scratch is in `tmp`, and is removed with it.

    Raises EngineFailure for a missing folder, and for volumes that processes cannot have.
    """
    places = {one.name: _place(one, tmp) for one in mounts}
    # Each attempt has its own scratch, but they all share a home.
    lasting = {one.name: places[one.name] for one in mounts if one.kind is VolumeKind.FOLDER}
    link_volumes(SafePath(home), lasting, os.geteuid(), os.getegid())
    return {name: str(home / FOLDER / name) if name in lasting else place for name, place in places.items()}


def _place(mount: Mount, tmp: Path) -> str:
    if mount.kind is VolumeKind.SCRATCH:
        folder = tmp / FOLDER / mount.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)
    if mount.kind is VolumeKind.DOCKER:
        raise EngineFailure(f"the volume {mount.name} is Docker's, and this machine runs workloads as processes")
    folder = Path(os.path.normpath(mount.source))
    if mount.made:
        try:
            folder.parent.mkdir(mode=0o711, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise EngineFailure(f"the volume {mount.name} cannot be made: {error}", retryable=True) from error
    if not folder.is_dir():
        raise EngineFailure(f"the volume {mount.name} ({folder}) is not on this machine; tell the admin")
    return str(folder)
