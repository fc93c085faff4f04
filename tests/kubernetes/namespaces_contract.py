"""The contract of the namespaces that Commonage keeps, on the double of a cluster and on a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForNamespace
from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.tenants import Bounds, Quota, Tenant
from commonage.engines.kubernetes.client import NAMESPACES, PODS, Client, Resource
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.translate import pod_name
from commonage.testing.behaviour import Behaviour

PATIENCE_S = 60.0
QUOTAS = Resource("/api/v1", "resourcequotas")
POLICIES = Resource("/apis/networking.k8s.io/v1", "networkpolicies")
BINDINGS = Resource("/apis/rbac.authorization.k8s.io/v1", "rolebindings")


def physics(cpus: int) -> Tenant:
    return Tenant("physics", quota=Quota(Bounds(cpus_milli=1000 * cpus), Bounds(cpus_milli=0)))


@dataclass
class KeptSite:
    """`admin` is the client of someone who may do everything. `forbid` takes a right from Commonage, or returns it."""

    rig: KubernetesRig
    admin: Client
    forbid: Callable[[str, str, bool], None]

    @property
    def namespace(self) -> str:
        return f"{self.rig.settings.namespace}-physics"

    def request(self, **behaviour: Any) -> StartRequest:
        return self.rig.start_request(Behaviour(**behaviour), tenant="physics")

    async def keep(self, *tenants: Tenant) -> Mapping[str, Reason]:
        return await (await self.rig.engine()).keep_tenants(tenants)

    async def ready(self, *tenants: Tenant) -> None:
        """A right that was just given takes a moment."""
        await self.until(lambda: self.keep(*tenants), lambda found: not found)

    async def find(self, resource: Resource, name: str) -> Manifest | None:
        return await self.admin.find(resource.path(self.namespace, name))

    async def until(self, look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not holds(found := await look()):
            assert time.monotonic() < end, found
            await asyncio.sleep(0.2)
        return found

    async def reason_of(self, request: StartRequest) -> Reason | None:
        found = await self.rig.status(request.attempt_id)
        return None if found is None else found.reason

    async def waits(self, request: StartRequest) -> WaitingForNamespace:
        def holds(reason: Reason | None) -> bool:
            return isinstance(reason, WaitingForNamespace)

        found: WaitingForNamespace = await self.until(lambda: self.reason_of(request), holds)
        return found


class NamespacesContract:
    @pytest.fixture
    async def site(self) -> KeptSite:
        raise NotImplementedError

    async def test_work_waits_for_the_namespace_and_then_runs_in_it(self, site: KeptSite) -> None:
        request = site.request(lasts_s=0.0)
        await (await site.rig.engine()).start(request)
        assert (await site.waits(request)).namespace == site.namespace

        await site.ready(physics(1))

        ended = await site.rig.phase(request.attempt_id, Phase.ENDED)
        assert ended.exit_code == 0

    async def test_work_that_waits_for_the_namespace_can_be_stopped(self, site: KeptSite) -> None:
        engine, request = await site.rig.engine(), site.request()
        await engine.start(request)
        await site.waits(request)

        await engine.stop(request.attempt_id, 1.0)

        await site.rig.phase(request.attempt_id, Phase.ENDED)
        await engine.forget(request.attempt_id)

    async def test_the_namespace_has_labels_access_firewall_and_quota(self, site: KeptSite) -> None:
        await site.ready(physics(1))

        namespace = await site.admin.get(NAMESPACES.path(None, site.namespace))
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        assert await site.find(POLICIES, "commonage-default-deny")
        binding = await site.find(BINDINGS, "commonage")
        assert binding is not None
        assert binding["roleRef"]["name"] == f"{site.rig.settings.namespace}-tenant"
        quota = await site.find(QUOTAS, "commonage")
        assert quota is not None
        assert quota["spec"]["hard"] == {"requests.cpu": "1400m"}

    async def test_follows_the_quota_of_the_tenant(self, site: KeptSite) -> None:
        await site.ready(physics(1))
        await site.ready(physics(2))

        quota = await site.find(QUOTAS, "commonage")
        assert quota is not None
        assert quota["spec"]["hard"] == {"requests.cpu": "2400m"}

    async def test_what_others_delete_or_change_comes_back(self, site: KeptSite) -> None:
        await site.ready(physics(1))
        await site.admin.delete(POLICIES.path(site.namespace, "commonage-default-deny"))
        change = {"spec": {"hard": {"requests.cpu": "64"}}}
        await site.admin.merge(QUOTAS.path(site.namespace, "commonage"), change)

        await site.ready(physics(1))

        assert await site.find(POLICIES, "commonage-default-deny")
        quota = await site.find(QUOTAS, "commonage")
        assert quota is not None
        assert quota["spec"]["hard"] == {"requests.cpu": "1400m"}

    async def test_the_namespace_of_a_tenant_that_is_gone_is_deleted_once_its_pods_are(self, site: KeptSite) -> None:
        engine, request = await site.rig.engine(), site.request(lasts_s=None)
        await site.ready(physics(1))
        await engine.start(request)
        await site.rig.phase(request.attempt_id, Phase.RUNNING)

        await site.ready()
        assert await site.admin.find(NAMESPACES.path(None, site.namespace))

        await engine.stop(request.attempt_id, 0.0)
        await site.rig.phase(request.attempt_id, Phase.ENDED)
        await engine.forget(request.attempt_id)
        await site.until(lambda: site.admin.list_all(PODS.path(site.namespace)), lambda found: not found.items)
        await site.ready()

        def is_going(found: Manifest | None) -> bool:
            return found is None or "deletionTimestamp" in found["metadata"]

        await site.until(lambda: site.admin.find(NAMESPACES.path(None, site.namespace)), is_going)

    async def test_a_member_of_a_gang_reaches_the_others_while_it_runs(self, site: KeptSite) -> None:
        plain = site.request(lasts_s=None)
        request = replace(plain, gang=(plain.attempt_id, f"{plain.attempt_id}-peer"))
        engine, policy = await site.rig.engine(), pod_name(request.attempt_id)
        await site.ready(physics(1))
        await engine.start(request)
        await site.rig.phase(request.attempt_id, Phase.RUNNING)

        found = await site.find(POLICIES, policy)
        assert found is not None
        assert found["spec"]["policyTypes"] == ["Ingress", "Egress"]
        [members] = found["spec"]["egress"][0]["to"][0]["podSelector"]["matchExpressions"]
        assert members["values"] == list(request.gang)

        await engine.stop(request.attempt_id, 0.0)
        await site.rig.phase(request.attempt_id, Phase.ENDED)
        await engine.forget(request.attempt_id)
        await site.until(lambda: site.find(POLICIES, policy), lambda left: left is None)

    async def test_a_missing_right_is_named_until_it_is_granted(self, site: KeptSite) -> None:
        site.forbid("patch", "namespaces", True)
        why = WaitingForNamespace(namespace=site.namespace, missing="patch namespaces")
        await site.until(lambda: site.keep(physics(1)), lambda found: found == {"physics": why})

        request = site.request(lasts_s=0.0)
        await (await site.rig.engine()).start(request)
        assert await site.waits(request) == why

        site.forbid("patch", "namespaces", False)
        await site.ready(physics(1))
        await site.rig.phase(request.attempt_id, Phase.ENDED)
