"""The namespaces that Commonage keeps, on a real cluster: with its own rights, and under the admission policies."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.kubernetes.conftest import PREFIX
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.namespaces_contract import KeptSite, NamespacesContract
from tests.kubernetes.rig import KubernetesRig

from commonage.engines.kubernetes.client import Client
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.admission import admission_manifests
from commonage.engines.kubernetes.tenants.rbac import roles
from commonage.engines.settings import KubernetesPolicySettings

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Access:
    """The account of a control plane with the rights of `access.yaml`, bounded by `admission.yaml`."""

    settings: KubernetesPolicySettings
    admin: Kubectl
    kubeconfig: Path
    cluster_role: Manifest

    def forbid(self, verb: str, resource: str, forbidden: bool) -> None:
        role = json.loads(json.dumps(self.cluster_role))
        for rule in role["rules"]:
            if forbidden and resource in rule["resources"] and verb in rule["verbs"]:
                rule["verbs"].remove(verb)
        self.admin.must("replace", "-f", "-", manifest=role)


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    prefix, admin = f"{PREFIX}-{secrets.token_hex(3)}", Kubectl()
    system = f"{prefix}-system"
    settings = KubernetesPolicySettings(prefix, system, "control", prefix)
    installed = [*roles(settings), *admission_manifests(settings)]
    folder = tmp_path_factory.mktemp("access")
    file = folder / "access.yaml"
    file.write_text(yaml.safe_dump_all(installed), encoding="utf-8")
    try:
        admin.must("create", "namespace", system)
        admin.must("create", "serviceaccount", "control", "-n", system)
        admin.must("apply", "-f", str(file))
        token = admin.must("create", "token", "control", "-n", system).strip()
        config = Path(admin.with_token(token, folder / "token.json").config)
        yield Access(settings, admin, config, installed[0])
    finally:
        admin.run("delete", "namespace", "-l", f"commonage.dev/installation={prefix}", "--wait=false")
        admin.run("delete", "namespace", system, "--wait=false")
        admin.run("delete", "--ignore-not-found", "-f", str(file))


class TestNamespacesOfCluster(NamespacesContract):
    @pytest.fixture
    async def site(self, access: Access, tmp_path: Path) -> AsyncIterator[KeptSite]:
        """Without the namespace of the test before."""
        nodes = json.loads(access.admin.must("get", "nodes", "-o", "json"))["items"]
        node = next(one["metadata"]["name"] for one in nodes if not one["spec"].get("taints"))
        rig = KubernetesRig(tmp_path, access.settings.prefix, node, kubeconfig=access.kubeconfig, namespaces="kept")
        admin = Client(Path(os.environ["KUBECONFIG"]))
        admin.open()
        site = KeptSite(rig, admin, access.forbid)
        try:
            yield site
        finally:
            await rig.end_all(forget=True)
            await admin.close()
            access.forbid("", "", False)
            access.admin.must("delete", "namespace", site.namespace, "--ignore-not-found", "--timeout=60s")
