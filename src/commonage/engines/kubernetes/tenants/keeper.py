"""Keeps the tenants' namespaces for the engine, and says why a tenant's work cannot start there yet.

Only for sites whose settings let Commonage keep them (`namespaces = "kept"`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForNamespace
from commonage.domain.tenants import Tenant
from commonage.engines.kubernetes.client import Client, Refused, Unreachable
from commonage.engines.kubernetes.tenants.applier import ClientApplier
from commonage.engines.kubernetes.tenants.namespaces import namespace_of
from commonage.engines.kubernetes.tenants.reconciler import TenantReconciler, TenantsReport
from commonage.engines.settings import KubernetesPolicySettings, KubernetesSettings

_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)", re.ASCII)
_LACKS = re.compile(r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"', re.ASCII)
_GATEWAY_PORTS = (8000, 8084)  # of proxy and workload gateway in the chart
_log = logging.getLogger(__name__)


class NamespaceNotReadyError(Unreachable):
    """The attempt is not started. It is tried again."""

    def __init__(self, waiting: WaitingForNamespace) -> None:
        super().__init__(waiting, retryable=True)
        self.waiting = waiting


class TenantKeeper:
    def __init__(self, client: Client, settings: KubernetesSettings) -> None:
        self._client, self._settings = client, settings
        self._reconciler: TenantReconciler | None = None
        self._names = KubernetesPolicySettings(settings.namespace, prefix=settings.namespace)
        self._tenants: set[str] = set()
        self._waiting: dict[str, WaitingForNamespace] = {}  # by tenant
        self._left: dict[str, tuple[str, ...]] = {}
        self._lock = asyncio.Lock()

    async def keep(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        """Apply what changed or drifted. Returns the tenants whose namespaces are not ready.

        Raises EngineFailure if the cluster does not answer; then namespaces that were ready count as ready.
        """
        async with self._lock:
            known = self._tenants
            self._tenants = {one.name for one in tenants}
            self._waiting = {
                name: self._waiting.get(name) or self._reason(name)
                for name in self._tenants
                if name in self._waiting or name not in known
            }
            try:
                if self._reconciler is None:
                    self._reconciler = TenantReconciler(ClientApplier(self._client), await self._policies())
                report = await self._reconciler.turn(tenants)
            except Refused as error:
                self._waiting = {name: self._reason(name, error) for name in self._tenants}
                _log.warning("the namespaces of tenants are not kept: %s", error)
            else:
                self._note(report)
            return dict(self._waiting)

    def _note(self, report: TenantsReport) -> None:
        self._waiting = {
            name: self._reason(name, failure)
            for name in self._tenants
            if (failure := report.faults.get(self._namespace(name))) is not None
        }
        for text, why in report.failed.items():
            _log.warning("%s is not kept, will try again: %s", text, why)
        if report.applied:
            _log.info("applied for tenants: %s", ", ".join(report.applied))
        if report.removed:
            _log.info("removed, because no tenant needs it: %s", ", ".join(report.removed))
        if report.left != self._left and report.left:
            stays = (f"{name} ({', '.join(held) or 'not made by Commonage'})" for name, held in report.left.items())
            _log.warning("these namespaces of tenants that are gone stay, with what they hold: %s", "; ".join(stays))
        self._left = report.left

    @contextmanager
    def starting(self, tenant: str) -> Iterator[None]:
        """For the start of an attempt of the tenant. Raises NamespaceNotReadyError.

        Before the first `keep` of this process a namespace that exists is taken as it is: the process before made it.
        """
        if waiting := self._waiting.get(tenant):
            raise NamespaceNotReadyError(waiting)
        try:
            yield
        except Refused as error:
            if error.http_status == 404 and self._namespace(tenant) in error.text:
                raise NamespaceNotReadyError(self._reason(tenant)) from error
            if error.http_status == 403 and _LACKS.search(error.text):
                raise NamespaceNotReadyError(self._reason(tenant, error)) from error
            raise

    def _reason(self, tenant: str, failure: EngineFailure | None = None) -> WaitingForNamespace:
        namespace = self._namespace(tenant)
        if failure is None:
            return WaitingForNamespace(namespace=namespace)
        text = failure.text if isinstance(failure, Refused) else str(failure)
        lacks = _LACKS.search(text)
        if lacks is None:
            return WaitingForNamespace(namespace=namespace, error=text)
        return WaitingForNamespace(namespace=namespace, missing=f"{lacks['verb']} {lacks['resource']}")

    def _namespace(self, tenant: str) -> str:
        return namespace_of(tenant, self._names)

    async def _policies(self) -> KubernetesPolicySettings:
        """With the account by which this process is known in the cluster."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await self._client.create(_REVIEW, review)
        found = _ACCOUNT.fullmatch(answer["status"]["userInfo"].get("username", ""))
        namespace, account = found.groups() if found else ("", "")
        settings, kept = self._settings, self._settings.policies
        ports = {*_GATEWAY_PORTS, *settings.reaches, *([settings.gateway_port] if settings.gateway_port else ())}
        return KubernetesPolicySettings(
            settings.namespace,
            namespace,
            account,
            settings.namespace,
            address=settings.address or "",
            security_level=kept.security_level,
            internet=kept.internet,
            open_networks=kept.open_networks,
            node_networks=kept.node_networks,
            gpu_resources=kept.gpu_resources,
            platform_ports=tuple(sorted(ports)),
        )
