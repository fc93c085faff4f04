"""Volumes and the admin's folders as mounts, in the terms of Docker's API; checks of the paths that lead to them.

The daemon resolves a path again, as root, whenever it mounts it. So it is not enough that it has no link now: a user
who may write to a folder on the path could add one between our check and the daemon's. Only root and the server may be
able to change where it leads. Checks run in threads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import ROOT, Mount, VolumeKind, folder_name
from commonage.engines.containers.files.control_folder import Owner, give
from commonage.engines.rundir.workspaces import link_volumes
from commonage.engines.settings import Mount as AdminMount
from commonage.files.safe_path import SafePath, absolute

_MIB = 1024 * 1024


def docker_mounts(mounts: Sequence[Mount], installation: str, *, quota: bool) -> list[dict[str, Any]]:
    """Return the mounts of a request, outer places first.

    `quota`: the daemon can limit the size of a volume (its files lie on XFS with project quotas). Otherwise a size on
    disk is omitted, because the daemon would refuse the volume.
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
    # Without a source it is a volume of the container's own, and is removed with it.
    named = {"Source": docker_volume(mount.source, installation)} if mount.kind is VolumeKind.DOCKER else {}
    return {"Type": "volume", **named, **common, "VolumeOptions": kept}


def bind_options(writable: bool) -> dict[str, Any]:
    """Mount options of a folder. Mounts below it are included only if they may be written to.

    Docker makes the folder itself read-only, but not what is mounted below it: root inside could write there.
    """
    return {"Propagation": "rprivate"} if writable else {"Propagation": "rprivate", "NonRecursive": True}


def has_sizes(mounts: Sequence[Mount]) -> bool:
    """True if any of these needs to know whether the daemon can limit the size of a volume."""
    return any(one.size_mib is not None and not one.memory for one in mounts)


def docker_volume(source: str, installation: str) -> str:
    """Name of our Docker volume: no user reaches another's by choosing a name."""
    return f"commonage-{installation[:8]}-{source}"


def prepare_volume_folders(mounts: Sequence[Mount], home: SafePath, owner: Owner, *, is_local: bool) -> None:
    """Create the folders that belong to users, check that no link redirects them, and link to all from `home`.

    `is_local`: the container will run on this node, so a missing folder is an error. Folders of other nodes are checked
    only as far as this node sees them. Raises EngineFailure.
    """
    for mount in mounts:
        if mount.kind is VolumeKind.FOLDER:
            _prepare_volume_folder(mount, owner, is_local)
    places = {one.name: one.target for one in mounts if one.target == f"{ROOT}/{one.name}"}
    link_volumes(home, places, owner.host_uid, owner.host_gid)


def _prepare_volume_folder(mount: Mount, owner: Owner, is_local: bool) -> None:
    source = os.path.normpath(mount.source)
    what = f"the volume {mount.name} ({source})"
    check_path_is_trusted(source, what)
    if mount.made:
        try:
            _make(absolute(Path(source)), owner)
        except FileNotFoundError:
            pass  # checked below
        except OSError as error:
            raise EngineFailure(f"{what} cannot be made: {error.strerror}; tell the admin", retryable=True) from error
        check_path_is_trusted(source, what)
    if is_local and not os.path.isdir(source):
        raise EngineFailure(f"{what} is not on this machine; tell the admin, who may have to mount it", retryable=True)


def _make(place: SafePath, owner: Owner) -> None:
    """Create the last two folders if they are missing: the last is the owner's, no link is followed."""
    if place.is_folder():
        return
    if not place.parent.is_folder():
        # A tenant's folder above its users' own; folders above that are created by the admin.
        place.parent.make_folder(0o711)
    if place.make_folder():
        give(place, owner)


_NOBODY = 65534
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_path_is_trusted(source: str, what: str) -> None:
    """Raise EngineFailure unless all folders above `source` belong to root or to this process's user, and are writable
    by no other user.

    Neither it nor one of them may be a link. Missing folders are not checked. The folder itself may belong to any user.
    """
    path = Path(os.path.normpath(source))
    above = None
    for place in (*reversed(path.parents), path):
        try:
            found = place.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise EngineFailure(f"{what} cannot be looked at: {error.strerror}", retryable=True) from error
        if stat.S_ISLNK(found.st_mode):
            raise EngineFailure(f"{what} leads elsewhere by a link; name the folder itself")
        if above is not None:
            _check_replaceable(place.parent, above, found, what)
        above = found


def _check_replaceable(folder: Path, above: os.stat_result, found: os.stat_result, what: str) -> None:
    # On NFS root may be mapped to the user nobody, who then also owns what root creates there.
    trusted = (0, os.geteuid(), _NOBODY)
    if above.st_uid not in trusted:
        why = f"belongs to user {above.st_uid}"
    elif not above.st_mode & _OTHERS_WRITE or (above.st_mode & stat.S_ISVTX and found.st_uid in trusted):
        return
    else:
        why = f"is for others to write to ({stat.S_IMODE(above.st_mode):o})"
    raise EngineFailure(
        f"{what} could be made to lead elsewhere: {folder}, on the way to it, {why}; have it belong to root and take "
        "others' right to write to it away, or put the folder elsewhere"
    )


def source_of(mount: AdminMount, request: StartRequest) -> str:
    return mount.source.replace("{user}", folder_name(request.owner)).replace("{tenant}", folder_name(request.tenant))


def check_mount_sources(request: StartRequest, mounts: Sequence[AdminMount]) -> None:
    """Raise EngineFailure if anyone but root and the server could redirect the mount. In threads."""
    for mount in mounts:
        source = source_of(mount, request)
        check_path_is_trusted(source, f"{source}, which is to be mounted at {mount.target},")
