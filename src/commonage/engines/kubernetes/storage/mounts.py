"""The volumes of a Pod: the home at the same path as on other engines, and the volumes of its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from commonage.domain.volumes import Mount, VolumeKind, folder_name
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.claims import home_claim_name, volume_claim_name
from commonage.engines.settings import KubernetesSettings, KubernetesStorageSettings

RUNTIME = "/run/attempt"
"""Space of the Pod for files of a running program."""
RUNTIME_VARIABLES = {
    "JUPYTER_RUNTIME_DIR": f"{RUNTIME}/jupyter",
    "IPYTHONDIR": f"{RUNTIME}/ipython",
    "XDG_CACHE_HOME": f"{RUNTIME}/cache",
}
"""Variables for a session whose home is full: Jupyter and IPython write at their start. Then history, settings of
IPython and caches last as long as the session."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """`volumes` of the pod's spec and `volumeMounts` of the container."""

    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]

    def plus(self, other: PodVolumes) -> PodVolumes:
        """Both. Of several volumes with one name, which are equal, one."""
        named = {one["name"]: one for one in (*self.volumes, *other.volumes)}
        return PodVolumes(tuple(named.values()), (*self.mounts, *other.mounts))


def home_volume(owner: str, settings: KubernetesSettings) -> PodVolumes:
    """The home of a user: a claim, a folder that every node sees, or space that is gone with the Pod."""
    folder = folder_name(owner)
    inside: Manifest = {"name": "home", "mountPath": f"/home/{folder}"}
    match settings.homes:
        case "claim":
            volume = _claimed("home", home_claim_name(owner))
        case "shared-claim":
            volume = _claimed("home", settings.storage.homes_claim)
            inside["subPath"] = folder
        case "host-path":
            place = {"path": f"{settings.homes_path}/{folder}", "type": "DirectoryOrCreate"}
            volume = {"name": "home", "hostPath": place}
        case "empty":
            volume = {"name": "home", "emptyDir": {}}
    return PodVolumes((volume,), (inside,))


def requested_volumes(mounts: Sequence[Mount], settings: KubernetesStorageSettings) -> PodVolumes:
    made = PodVolumes((), ())
    for number, mount in enumerate(mounts):
        volume, below = _volume(mount, f"volume-{number}", settings)
        inside: Manifest = {"name": volume["name"], "mountPath": mount.target, "readOnly": not mount.writable}
        if below:
            inside["subPath"] = below
        made = made.plus(PodVolumes((volume,), (inside,)))
    return made


def _volume(mount: Mount, name: str, settings: KubernetesStorageSettings) -> tuple[Manifest, str]:
    """The volume, and the folder in it."""
    if mount.kind is VolumeKind.SCRATCH:
        size = {} if mount.size_mib is None else {"sizeLimit": f"{mount.size_mib}Mi"}
        return {"name": name, "emptyDir": {**size, **({"medium": "Memory"} if mount.memory else {})}}, ""
    if mount.kind is VolumeKind.DOCKER:
        return _claimed(name, volume_claim_name(mount.source)), ""
    source = PurePosixPath(mount.source)
    for number, (folder, claim) in enumerate(settings.folders):
        if source.is_relative_to(folder):
            below = str(source.relative_to(folder))
            return _claimed(f"folder-{number}", claim), "" if below == "." else below
    return {"name": name, "hostPath": {"path": mount.source, "type": "Directory"}}, ""


def _claimed(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
