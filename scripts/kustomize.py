#!/usr/bin/env python
"""Writes what is made of something else: rules of the Helm chart's roles and of the site agent's from the table of
rights, and deploy/kustomize/base from the defaults of the chart.

With --check it writes nothing, and ends with status 1 if a file is out of date; tests/unit/deploy compares the two.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

from commonage.engines.kubernetes.tenants.admission import access_policy, admission_manifests
from commonage.engines.kubernetes.tenants.rbac import Reach, keeping_roles, rules
from commonage.engines.settings import KubernetesPolicySettings

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "commonage"
BASE = ROOT / "deploy" / "kustomize" / "base"
AGENT = ROOT / "deploy" / "kustomize" / "site-agent"
TENANTS = ROOT / "deploy" / "kustomize" / "site-agent-tenants"
NOTE = "# Made from the Helm chart by scripts/kustomize.py; change the chart, not this file.\n"
NAMESPACE = "commonage"
# The chart puts its own names in place of these.
IN_CHART = KubernetesPolicySettings("CHART-PREFIX", "CHART-NAMESPACE", "CHART-ACCOUNT", "CHART-PREFIX")
AT_SITE = KubernetesPolicySettings(
    "commonage-site-workloads", "commonage-site", "commonage-site-agent", "commonage-site-workloads"
)
# The Secret is not in the base: deploy/kustomize/secret makes it once.
VALUES = {"existingSecret": "commonage-secrets"}


def rendered(values: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, list[dict[str, Any]]]:
    """The chart's manifests, by the name of the template."""
    with helm_python.Chart.load(CHART) as chart:
        found = chart.render(values, name="commonage", namespace=namespace)
    parts = {Path(path).name: list(yaml.safe_load_all(text)) for path, text in found.items() if path.endswith(".yaml")}
    return {name: [one for one in manifests if one] for name, manifests in parts.items()}


def base() -> dict[str, str]:
    """The files of the base, by name."""
    files = {}
    for name, of_template in sorted(rendered(VALUES).items()):
        manifests = [one for one in of_template if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
        for one in manifests:
            _say_kustomize(one)
        if manifests:
            files[name] = NOTE + yaml.safe_dump_all(manifests, sort_keys=False, width=1000)
    # The node agents mount folders of their nodes, which other levels refuse.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    files["namespace.yaml"] = NOTE + yaml.safe_dump(namespace, sort_keys=False)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return {**files, "kustomization.yaml": NOTE + yaml.safe_dump(kustomization, sort_keys=False)}


def rules_files() -> dict[Path, str]:
    """The rules of the control plane's roles, for the chart, and the roles of the site agent."""
    made = {"cluster-rules.yaml": rules(Reach.CLUSTER), "workload-rules.yaml": rules(Reach.TENANTS)}
    tenants = {"tenant-roles.yaml": _access(IN_CHART), "tenant-policies.yaml": admission_manifests(IN_CHART)}
    note = "# Made from tenants/rbac.py by scripts/kustomize.py.\n"
    files = {CHART / "files" / name: note + yaml.safe_dump(found, sort_keys=False) for name, found in made.items()}
    files |= {CHART / "files" / name: note + _all(found) for name, found in tenants.items()}
    own = [*_access(AT_SITE), *admission_manifests(AT_SITE)]
    return {**files, AGENT / "roles.yaml": agent_roles(), TENANTS / "access.yaml": note + _all(own)}


def _access(settings: KubernetesPolicySettings) -> list[dict[str, Any]]:
    """The roles that keep namespaces, after the policy that bounds them."""
    return [*access_policy(settings), *keeping_roles(settings)]


def _all(manifests: Sequence[dict[str, Any]]) -> str:
    plain = json.loads(json.dumps(manifests))  # without references of YAML
    return yaml.safe_dump_all(plain, sort_keys=False, width=1000)


def agent_roles() -> str:
    """The site agent's roles. It reads the cluster as a control plane does, and writes only in its Pods' namespace."""
    name, agent, pods = "commonage-site-agent", "commonage-site", "commonage-site-workloads"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": agent}
    made = []
    for prefix, where, found in (
        ("Cluster", {}, rules(Reach.CLUSTER)),
        ("", {"namespace": pods}, rules(Reach.TENANTS)),
    ):
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, **where}}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": name}
        made.append({**head, "kind": f"{prefix}Role", "rules": found})
        made.append({**head, "kind": f"{prefix}RoleBinding", "roleRef": role, "subjects": [dict(subject)]})
    note = "# Made from tenants/rbac.py by scripts/kustomize.py.\n"
    return note + yaml.safe_dump_all(made, sort_keys=False, width=1000)


def _say_kustomize(value: Any) -> None:
    if isinstance(value, dict):
        if "app.kubernetes.io/managed-by" in value:
            value["app.kubernetes.io/managed-by"] = "kustomize"
        value.pop("helm.sh/resource-policy", None)
        for one in value.values():
            _say_kustomize(one)
    elif isinstance(value, list):
        for one in value:
            _say_kustomize(one)


def main() -> int:
    of_roles = rules_files()
    if "--check" in sys.argv:
        if any(not path.exists() or path.read_text() != text for path, text in of_roles.items()):
            return 1
    else:
        for path, text in of_roles.items():
            path.write_text(text)
    wanted = base()
    there = {path.name: path.read_text() for path in BASE.glob("*.yaml")}
    if "--check" in sys.argv:
        return int(wanted != there)
    BASE.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (BASE / name).unlink()
    for name, text in wanted.items():
        (BASE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
