"""The manifest of a file Pod: it mounts one claim or folder, and waits for commands.

It runs in the tenant's namespace as the user of the Pods of attempts, with the rights of any other Pod there. Its
command only waits; the program that works with the files is an `exec` in it. It ends after an hour.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from commonage.engines.kubernetes.labels import digest, label_value
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.mounts import PodVolumes
from commonage.engines.kubernetes.tenants.names import INSTALLATION, KIND, TENANT
from commonage.engines.kubernetes.translate import (
    container_security,
    host_users,
    pod_security,
    priority,
    pull_secrets,
)
from commonage.engines.settings import KubernetesSettings

INSIDE = "/data"
FILES = "files"
LIVES_S = 3600
COMMAND = ("python3", "-m", "commonage.storage.file_pod", INSIDE)
CPUS_MILLI, MEMORY_MIB, MEMORY_LIMIT_MIB = 50, 96, 384
_REQUESTS = {"cpu": f"{CPUS_MILLI}m", "memory": f"{MEMORY_MIB}Mi"}
_LIMITS = {"memory": f"{MEMORY_LIMIT_MIB}Mi"}


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One volume of the Pods of a tenant."""

    namespace: str
    tenant: str
    volumes: PodVolumes
    writable: bool = True

    @property
    def claim(self) -> str:
        [volume] = self.volumes.volumes
        return str((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))

    @property
    def key(self) -> str:
        [mount] = self.volumes.mounts
        what = [self.namespace, self.volumes.volumes, mount.get("subPath", ""), self.writable]
        return json.dumps(what, sort_keys=True)

    @property
    def pod(self) -> str:
        return f"cm-files-{digest(self.key)[:24]}"


def file_pod(place: FilePlace, installation: str, settings: KubernetesSettings, node: str = "") -> Manifest:
    """A Pod with the place at `/data`. `node`: the only one that can mount it; empty: any."""
    [volume], [mount] = place.volumes.volumes, place.volumes.mounts
    labels = {INSTALLATION: installation, KIND: FILES, **({TENANT: place.tenant} if place.tenant else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": place.pod,
            "namespace": place.namespace,
            "labels": {key: label_value(value) for key, value in labels.items()},
        },
        "spec": {
            "restartPolicy": "Never",
            **priority(settings),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": LIVES_S,
            "terminationGracePeriodSeconds": 0,
            **({"affinity": _on(node)} if node else {}),
            "tolerations": [dict(one) for one in settings.tolerations],
            "securityContext": pod_security(settings),
            **host_users(settings, [volume]),
            **pull_secrets(settings),
            **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
            "containers": [
                {
                    "name": FILES,
                    "image": settings.storage.files_image,
                    "imagePullPolicy": "IfNotPresent" if settings.pull == "missing" else "Never",
                    "command": ["sleep", str(LIVES_S)],
                    "resources": {"requests": _REQUESTS, "limits": _LIMITS},
                    "securityContext": {**container_security(settings), "readOnlyRootFilesystem": True},
                    "volumeMounts": [{**mount, "mountPath": INSIDE, "readOnly": not place.writable}],
                }
            ],
            "volumes": [volume],
        },
    }


def is_file_pod(pod: Manifest) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(KIND) == FILES)


def _on(node: str) -> Manifest:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
