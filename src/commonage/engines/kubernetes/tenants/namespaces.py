"""The namespace of a tenant with its quota, its limits for containers and the control plane's access to it."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.tenants import Amounts, Bounds, Quota, Tenant
from commonage.engines.kubernetes import translate
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.storage.file_pod import CPUS_MILLI, MEMORY_LIMIT_MIB, MEMORY_MIB
from commonage.engines.kubernetes.tenants.names import TENANT, metadata
from commonage.engines.kubernetes.tenants.network import network_policies
from commonage.engines.kubernetes.tenants.rbac import role_binding
from commonage.engines.settings import KubernetesPolicySettings, KubernetesSettings

_FILE_PODS = 8
POLICY = "policy"  # the part of what the loop of the tenants keeps
SECURITY_LEVEL = "pod-security.kubernetes.io"


def namespace_of(tenant: str, settings: KubernetesPolicySettings) -> str:
    if settings.single:
        return settings.single
    return translate.namespace_of(tenant, KubernetesSettings(namespace=settings.prefix, namespaces="kept"))


def manifests_of(tenants: Sequence[Tenant], settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """All objects of the tenants' namespaces, in the order in which they are applied."""
    if settings.single:
        return _manifests(None, settings)
    return tuple(manifest for tenant in tenants for manifest in _manifests(tenant, settings))


def _manifests(tenant: Tenant | None, settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    name = settings.single if tenant is None else namespace_of(tenant.name, settings)
    labels = {} if tenant is None else {TENANT: tenant.name}
    made = [
        namespace(name, labels, tenant, settings),
        *([role_binding(name, settings)] if settings.service_account else ()),
        limit_range(name, labels, settings),
        *network_policies(name, labels, settings),
    ]
    if tenant is not None and (quota := resource_quota(name, tenant, settings)) is not None:
        made.append(quota)
    return tuple(made)


def namespace(name: str, labels: dict[str, str], tenant: Tenant | None, settings: KubernetesPolicySettings) -> Manifest:
    meta = metadata(name, settings.installation, labels, part=POLICY)
    level = security_level(tenant, settings)
    meta["labels"] |= {
        f"{SECURITY_LEVEL}/enforce": level,
        f"{SECURITY_LEVEL}/audit": "restricted",
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def security_level(tenant: Tenant | None, settings: KubernetesPolicySettings) -> str:
    """The level that Pod Security enforces.

    Neither `restricted` nor `baseline` allows any folder of the node. Where some are declared, our admission policy
    alone refuses what these levels refuse, and any other folder.
    """
    if settings.security_level:
        return settings.security_level
    if settings.host_folders:
        return "privileged"
    has_root = settings.root_tenants if tenant is None else tenant.name in settings.root_tenants
    return "baseline" if has_root else "restricted"


def resource_quota(name: str, tenant: Tenant, settings: KubernetesPolicySettings) -> Manifest | None:
    """The most that the tenant may hold, borrowed resources included; None without any bound.

    The scheduler keeps to the quota by itself. This also bounds Pods that others create in the namespace.
    """
    hard = quota_hard(tenant.quota, settings.gpu_resources)
    meta = metadata("commonage", settings.installation, {TENANT: tenant.name}, namespace=name, part=POLICY)
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}} if hard else None


def quota_hard(quota: Quota, gpu_resources: Sequence[str]) -> dict[str, str]:
    """Includes room for some file Pods, so that a tenant can use its whole quota while files are looked at."""
    cpus, memory = _most(quota, "cpus_milli"), _most(quota, "memory_mib")
    gpus, storage = _most(quota, "gpu_milli"), quota.nominal.storage_mib
    hard = {}
    if cpus is not None:
        hard["requests.cpu"] = cpu_quantity(cpus + _FILE_PODS * CPUS_MILLI)
    if memory is not None:
        hard["requests.memory"] = f"{memory + _FILE_PODS * MEMORY_MIB}Mi"
        hard["limits.memory"] = f"{memory + _FILE_PODS * MEMORY_LIMIT_MIB}Mi"
    if gpus is not None:
        hard |= {f"requests.{resource}": str(-(-gpus // 1000)) for resource in gpu_resources}
    if storage is not None:
        hard["requests.storage"] = f"{storage}Mi"
    return hard


def _most(quota: Quota, resource: str) -> int | None:
    """Its own and what it may borrow; None: no bound."""
    assert resource in Amounts.__dataclass_fields__
    own, borrowed = (_bound(bounds, resource) for bounds in (quota.nominal, quota.borrowing))
    return None if own is None or borrowed is None else own + borrowed


def _bound(bounds: Bounds, resource: str) -> int | None:
    found: int | None = getattr(bounds, resource)
    return found


def cpu_quantity(milli: int) -> str:
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def limit_range(name: str, labels: dict[str, str], settings: KubernetesPolicySettings) -> Manifest:
    """Defaults for containers that name no amounts, for example sidecars that others inject.

    Without them a quota refuses such a pod.
    """
    defaults = {
        "type": "Container",
        "defaultRequest": {"cpu": "50m", "memory": "64Mi"},
        "default": {"memory": "256Mi"},
    }
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": metadata("commonage", settings.installation, labels, namespace=name, part=POLICY),
        "spec": {"limits": [defaults]},
    }
