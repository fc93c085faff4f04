"""Volumes of workloads that are processes of this machine: nothing is mounted, links in the home lead to them.

What the processes may do with a folder is what the server's account may do: read-only is not enforced, nor is a size.
The links say where things are; who may have what was decided before. Called in threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.common.volume_links import FOLDER, link_volumes
from commonage.files.beneath import Beneath


def give_volumes(mounts: Sequence[Mount], home: Path, tmp: Path) -> dict[str, str]:
    """Have links to all volumes in `home`; where each is, by name. Scratch is in `tmp`, and goes with it.

    Raises EngineFailure for a folder that is not there, and for what processes cannot have.
    """
    places = {one.name: _place(one, tmp) for one in mounts}
    # Of scratch there is one for each attempt, and a home is shared by all of them.
    lasting = {one.name: places[one.name] for one in mounts if one.kind is VolumeKind.FOLDER}
    link_volumes(Beneath(home), lasting, os.geteuid(), os.getegid())
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
