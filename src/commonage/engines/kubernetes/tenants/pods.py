"""Security settings of the pods that run users' programs; the admission policies refuse pods without them."""

from __future__ import annotations

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.settings import KubernetesPolicySettings

BASELINE_CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""Those that Pod Security's `baseline` allows."""


def pod_security(tenant: str, user: tuple[int, int], settings: KubernetesPolicySettings) -> Manifest:
    """Fields of a pod's `spec`. Root runs in a user namespace, in which it is an unprivileged user on the node."""
    uid, gid = user
    context: Manifest = {"seccompProfile": seccomp_profile(settings)}
    made: Manifest = {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": context}
    if tenant in settings.root_tenants:
        return {**made, "hostUsers": False}
    context |= {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": gid,
        "fsGroup": gid,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    return made


def container_security(tenant: str, settings: KubernetesPolicySettings) -> Manifest:
    """The `securityContext` of each container."""
    if tenant in settings.root_tenants:
        return {"privileged": False, "capabilities": {"drop": ["ALL"], "add": list(BASELINE_CAPABILITIES)}}
    return {"privileged": False, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def seccomp_profile(settings: KubernetesPolicySettings) -> Manifest:
    if settings.seccomp:
        return {"type": "Localhost", "localhostProfile": settings.seccomp}
    return {"type": "RuntimeDefault"}
