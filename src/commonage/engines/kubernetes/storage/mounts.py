"""The volumes of a pod: the home at the same path as on other engines, the volumes of its request, and its own files.

What a session writes while it starts is in `emptyDir`s, so that it starts when the home is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind, folder_name
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.claims import home_claim_name, volume_claim_name
from commonage.engines.settings import KubernetesStorageSettings

RUN = "/run/commonage"
RUNTIME_VARIABLES = {
    "JUPYTER_RUNTIME_DIR": f"{RUN}/jupyter",
    "IPYTHONDIR": f"{RUN}/ipython",
    "XDG_CACHE_HOME": f"{RUN}/cache",
}
"""Variables for a session whose home is full: Jupyter and IPython write at their start. Then history, settings of
IPython and caches last as long as the session."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """`volumes` of the pod's spec and `volumeMounts` of the container."""

    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]

    def plus(self, other: PodVolumes) -> PodVolumes:
        """Both. Of several volumes with one name, which are equal, the first."""
        named = {one["name"]: one for one in (*other.volumes, *self.volumes)}
        return PodVolumes(tuple(named.values()), (*self.mounts, *other.mounts))


def home_volume(user: str, settings: KubernetesStorageSettings) -> PodVolumes:
    inside = {"name": "home", "mountPath": f"/home/{folder_name(user)}"}
    if settings.homes == "folder":
        return PodVolumes((_claimed("home", settings.homes_claim),), ({**inside, "subPath": folder_name(user)},))
    return PodVolumes((_claimed("home", home_claim_name(user)),), (inside,))


def own_volumes(memory_mib: int) -> PodVolumes:
    """Runtime files, temporary files and shared memory of one attempt. `memory_mib`: of its allocation."""
    shared = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{max(64, memory_mib // 2)}Mi"}}
    places = (("run", RUN), ("tmp", "/tmp"), ("shm", "/dev/shm"))  # noqa: S108 - of the container
    return PodVolumes(
        ({"name": "run", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}, shared),
        tuple({"name": name, "mountPath": path} for name, path in places),
    )


def requested_volumes(mounts: Sequence[Mount], settings: KubernetesStorageSettings) -> PodVolumes:
    """Raises EngineFailure for a folder that is in neither a declared claim nor a declared folder of the nodes."""
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
    if any(source.is_relative_to(folder) for folder in settings.host_folders):
        kind = "DirectoryOrCreate" if mount.made else "Directory"
        return {"name": name, "hostPath": {"path": str(source), "type": kind}}, ""
    raise EngineFailure(
        f"the volume {mount.name} is the folder {source}, and no claim of the cluster has it; add it to the site's "
        "folders with a claim, or declare it as a folder of its nodes",
        retryable=False,
    )


def _claimed(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
