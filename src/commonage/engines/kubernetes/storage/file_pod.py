"""The pod through which the control plane reads and writes a claim: the Data page, and copies of materials.

It runs in the tenant's namespace, as the claim's user, with the rights of any other pod there. Its command only waits;
each transfer is an `exec` in it. It ends after an hour.
"""

from __future__ import annotations

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import KIND, TENANT, metadata, object_name
from commonage.engines.kubernetes.tenants.namespaces import namespace_of
from commonage.engines.kubernetes.tenants.pods import container_security, pod_security
from commonage.engines.settings import KubernetesPolicySettings

INSIDE = "/data"
FILES = "files"
LIVES_S = 3600
_AMOUNTS = {"cpu": "50m", "memory": "64Mi"}


def file_pod(
    claim: str, tenant: str, image: str, user: tuple[int, int], settings: KubernetesPolicySettings, *, writable: bool
) -> Manifest:
    """A pod with the claim at `/data`. A ReadWriteOnce claim in use elsewhere keeps it waiting, as any other pod."""
    security = pod_security(tenant, user, settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            object_name("files", claim),
            settings.installation,
            {TENANT: tenant, KIND: FILES},
            namespace=namespace_of(tenant, settings),
        ),
        "spec": {
            **security,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIVES_S,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": FILES,
                    "image": image,
                    "command": ["sleep", str(LIVES_S)],
                    "securityContext": {**container_security(tenant, settings), "readOnlyRootFilesystem": True},
                    "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
                    "volumeMounts": [{"name": "data", "mountPath": INSIDE, "readOnly": not writable}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": not writable}}],
        },
    }
