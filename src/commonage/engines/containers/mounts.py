"""Volumes as mounts of a container, in the words of Docker's API, which are the same for containers and services.

`docker_mounts` is pure. What has to be seen to before a container is made, on the machine of the control plane, is
`see_to_folders`, for threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import ROOT, Mount, VolumeKind
from commonage.engines.common.volume_links import link_volumes
from commonage.engines.containers.box import Owner, give
from commonage.engines.containers.sources import see_that_nobody_can_redirect
from commonage.files.beneath import Beneath, absolute

_MIB = 1024 * 1024


def docker_mounts(mounts: Sequence[Mount], installation: str, *, quota: bool) -> list[dict[str, Any]]:
    """The mounts of an order, outer places first.

    `quota`: the daemon can hold a volume to its size (its files lie on XFS with project quotas); where it cannot, a
    size on disk is left out, as it would refuse the volume.
    """
    return [_docker_mount(one, installation, quota) for one in sorted(mounts, key=lambda one: one.target)]


def _docker_mount(mount: Mount, installation: str, quota: bool) -> dict[str, Any]:
    common = {"Target": mount.target, "ReadOnly": not mount.writable}
    if mount.kind is VolumeKind.FOLDER:
        return {"Type": "bind", "Source": mount.source, **common, "BindOptions": bind_options(mount.writable)}
    options: dict[str, str] = {}
    if mount.memory:
        # Not Docker's own tmpfs mounts, from which no program can be run.
        options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={mount.size_mib}m,mode=1777,nosuid,nodev"}
    elif mount.size_mib is not None and quota:
        options = {"size": str(mount.size_mib * _MIB)}
    kept = {
        "Labels": {"commonage.installation": installation, "commonage.volume": mount.name},
        "DriverConfig": {"Name": "local", "Options": options},
    }
    # Without a source it is a volume of the container's own, and goes with it.
    named = {"Source": docker_volume(mount.source, installation)} if mount.kind is VolumeKind.DOCKER else {}
    return {"Type": "volume", **named, **common, "VolumeOptions": kept}


def bind_options(writable: bool) -> dict[str, Any]:
    """How a folder is mounted. What is mounted below one comes along only where that may be written to.

    Docker makes the folder itself read-only and nothing that is mounted below it: root inside could write there.
    """
    return {"Propagation": "rprivate"} if writable else {"Propagation": "rprivate", "NonRecursive": True}


def has_sizes(mounts: Sequence[Mount]) -> bool:
    """True if the answer to "can the daemon hold a volume to its size" matters to any of these."""
    return any(one.size_mib is not None and not one.memory for one in mounts)


def docker_volume(source: str, installation: str) -> str:
    """The name of a Docker volume of ours: nobody reaches another's by choosing a name."""
    return f"commonage-{installation[:8]}-{source}"


def see_to_folders(mounts: Sequence[Mount], home: Beneath, owner: Owner, *, here: bool) -> None:
    """Have the folders there that are their users' own, see that nothing leads elsewhere, and link to all from `home`.

    `here`: the container will run on this very machine, so a folder that is missing is an error; of other machines'
    folders only what is seen from here can be judged. Raises EngineFailure.
    """
    for mount in mounts:
        if mount.kind is VolumeKind.FOLDER:
            _see_to_folder(mount, owner, here)
    places = {one.name: one.target for one in mounts if one.target == f"{ROOT}/{one.name}"}
    link_volumes(home, places, owner.outside_uid, owner.outside_gid)


def _see_to_folder(mount: Mount, owner: Owner, here: bool) -> None:
    source = os.path.normpath(mount.source)
    what = f"the volume {mount.name} ({source})"
    see_that_nobody_can_redirect(source, what)
    if mount.made:
        try:
            _make(absolute(Path(source)), owner)
        except FileNotFoundError:
            pass  # judged below
        except OSError as error:
            raise EngineFailure(f"{what} cannot be made: {error.strerror}; tell the admin", retryable=True) from error
        see_that_nobody_can_redirect(source, what)
    if here and not os.path.isdir(source):
        raise EngineFailure(f"{what} is not on this machine; tell the admin, who may have to mount it", retryable=True)


def _make(place: Beneath, owner: Owner) -> None:
    """Make the last two folders where they are missing: the last is the owner's, no link is followed."""
    if place.is_folder():
        return
    if not place.above.is_folder():
        # A tenant's folder above its users' own; what is above that is the admin's to make.
        place.above.make_folder(0o711)
    if place.make_folder():
        give(place, owner)
