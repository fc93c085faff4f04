"""The pod through which the control plane reads and writes a claim: the Data page, and copies of materials.

It runs the platform's own program, in the tenant's namespace and on the platform's image, without network. Its command
waits; each transfer is an `exec` in it, as the claim's user. It ends by itself when it was not used.
"""

from __future__ import annotations

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import KIND, TENANT, metadata, object_name
from commonage.engines.kubernetes.tenants.pods import container_security, pod_security
from commonage.engines.settings import KubernetesPolicySettings

INSIDE = "/data"
FILES = "files"
_AMOUNTS = {"cpu": "50m", "memory": "64Mi"}


def file_pod(
    claim: str,
    tenant: str,
    namespace: str,
    image: str,
    user: tuple[int, int],
    settings: KubernetesPolicySettings,
    *,
    writable: bool,
    lives_s: int = 3600,
) -> Manifest:
    """A pod with the claim at `/data`. A ReadWriteOnce claim in use elsewhere keeps it waiting, as any other pod."""
    security = pod_security(tenant, user, settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            object_name("files", claim), settings.installation, {TENANT: tenant, KIND: FILES}, namespace=namespace
        ),
        "spec": {
            **security,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": lives_s,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": FILES,
                    "image": image,
                    "command": ["sleep", str(lives_s)],
                    "securityContext": {**container_security(tenant, settings), "readOnlyRootFilesystem": True},
                    "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
                    "volumeMounts": [{"name": "data", "mountPath": INSIDE, "readOnly": not writable}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": not writable}}],
        },
    }
