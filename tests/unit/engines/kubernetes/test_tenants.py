"""Namespaces of tenants and their policies, as manifests."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engines.kubernetes.manifests import assert_golden

from commonage.domain.tenants import Bounds, Quota, Tenant
from commonage.engines.kubernetes.tenants.admission import (
    access_policy,
    admission_manifests,
    gatekeeper_constraints,
    gatekeeper_templates,
    policies,
)
from commonage.engines.kubernetes.tenants.names import object_name
from commonage.engines.kubernetes.tenants.namespaces import manifests_of, namespace_of, quota_hard
from commonage.engines.kubernetes.tenants.policy_files import policy_files
from commonage.engines.kubernetes.tenants.rbac import GRANTS, roles
from commonage.engines.settings import KubernetesPolicySettings

SHIPPED = Path(__file__).parents[4] / "deploy" / "kubernetes" / "policies"
SETTINGS = KubernetesPolicySettings(
    "campus",
    registries=("registry.example.org/lab",),
    root_tenants=("roots",),
    node_networks=("10.1.0.0/16", "131.159.0.0/16"),
    open_networks=("10.2.3.4/32",),
    gpu_resources=("nvidia.com/gpu",),
)
PHYSICS = Tenant(
    "physics",
    quota=Quota(Bounds(cpus_milli=64500, memory_mib=1024, gpu_milli=2500, storage_mib=100), Bounds(500, 0, 0)),
)


def test_manifests_of_tenants() -> None:
    assert_golden("tenants", manifests_of([PHYSICS, Tenant("roots"), Tenant("Übung 3")], SETTINGS))


def test_manifests_of_a_single_namespace() -> None:
    settings = KubernetesPolicySettings("campus", single="work", internet=False)

    assert_golden("single", manifests_of([PHYSICS, Tenant("roots")], settings))


def test_manifests_that_the_admin_installs() -> None:
    assert_golden("policies", [*access_policy(SETTINGS), *roles(SETTINGS), *admission_manifests(SETTINGS)])


def test_manifests_for_gatekeeper() -> None:
    assert_golden("gatekeeper", [*gatekeeper_templates(SETTINGS), *gatekeeper_constraints(SETTINGS)])


def test_the_shipped_files_are_those_of_the_code() -> None:
    made = policy_files(KubernetesPolicySettings("commonage"))

    assert {path.name: path.read_text() for path in SHIPPED.iterdir() if path.suffix == ".yaml"} == made


def test_the_right_to_bind_a_role_comes_with_the_policy_that_bounds_it() -> None:
    """Without it the control plane could bind the tenants' role in any namespace, and read the Secrets there."""
    made = list(yaml.safe_load_all(policy_files(SETTINGS)["access.yaml"]))
    binds = [one["kind"] for one in made if any("bind" in rule["verbs"] for rule in one.get("rules", ()))]

    assert binds == ["ClusterRole"]
    assert [one["kind"] for one in made[:2]] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    assert made[1]["spec"]["policyName"] == made[0]["metadata"]["name"] == f"{SETTINGS.prefix}-own"
    others = {name: text for name, text in policy_files(SETTINGS).items() if name != "access.yaml"}
    assert not any(f"{SETTINGS.prefix}-own" in text for text in others.values())


def test_gatekeeper_has_the_expressions_of_the_built_in_policies() -> None:
    for policy, template in zip(policies(SETTINGS), gatekeeper_templates(SETTINGS), strict=True):
        source = template["spec"]["targets"][0]["code"][0]["source"]

        assert [one["expression"] for one in source["validations"]] == [rule.expression for rule in policy.rules]


def test_falco_rules_have_what_falco_needs() -> None:
    macro, *rules = yaml.safe_load(policy_files(SETTINGS)["falco-rules.yaml"])

    assert set(macro) == {"macro", "condition"}
    assert rules
    for rule in rules:
        assert set(rule) == {"rule", "desc", "condition", "output", "priority", "tags"}
        assert rule["condition"].startswith("commonage_pod and (")


def test_the_table_names_each_resource_once_and_grants_no_wildcard() -> None:
    keys = [(grant.reach, grant.group, grant.resource, grant.keeping) for grant in GRANTS]

    assert len(set(keys)) == len(keys)
    assert not any("*" in grant.verbs + grant.resource + grant.group for grant in GRANTS)
    assert not {"escalate", "impersonate"} & {verb for grant in GRANTS for verb in grant.verbs.split()}


def test_a_tenant_that_may_borrow_without_bound_has_no_bound_in_the_cluster() -> None:
    assert quota_hard(Quota(Bounds(cpus_milli=1000)), ()) == {}


def test_file_pods_take_nothing_of_the_quota() -> None:
    bound = Bounds(cpus_milli=1000, memory_mib=1000)
    quota = Quota(bound, borrowing=Bounds(cpus_milli=0, memory_mib=0))
    assert quota_hard(quota, ()) == {"requests.cpu": "1400m", "requests.memory": "1768Mi", "limits.memory": "4072Mi"}


def test_an_open_network_of_nodes_stays_closed() -> None:
    settings = replace(SETTINGS, open_networks=("10.0.5.0/24", "10.1.0.0/16"), node_networks=("10.0.0.0/16",))
    opened = [one for one in manifests_of([PHYSICS], settings) if one["metadata"]["name"] == "commonage-open-networks"]
    [rule] = opened[0]["spec"]["egress"]
    assert [to["ipBlock"]["cidr"] for to in rule["to"]] == ["10.1.0.0/16"]


def test_pods_never_reach_metadata_services_or_nodes() -> None:
    forbidden = [ipaddress.ip_network(text) for text in ("169.254.169.254/32", "10.1.2.3/32", "131.159.7.7/32")]
    blocks = [
        to["ipBlock"]
        for manifest in manifests_of([PHYSICS], SETTINGS)
        if manifest["kind"] == "NetworkPolicy"
        for rule in manifest["spec"].get("egress", [])
        for to in rule["to"]
        if "ipBlock" in to
    ]

    assert blocks
    for block in blocks:
        whole = ipaddress.ip_network(block["cidr"])
        inner = [ipaddress.ip_network(text) for text in block.get("except", [])]
        for address in (one for one in forbidden if one.version == whole.version and one.subnet_of(whole)):
            assert any(address.subnet_of(one) for one in inner if one.version == address.version)


def test_declared_folders_need_namespaces_that_our_policies_alone_guard() -> None:
    settings = KubernetesPolicySettings("campus", host_folders=("/srv/data",))
    labels = manifests_of([PHYSICS], settings)[0]["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert labels["pod-security.kubernetes.io/audit"] == "restricted"


def test_manifests_of_a_platform_outside_the_cluster() -> None:
    settings = KubernetesPolicySettings(
        "campus", "", "", "campus", address="192.0.2.7", security_level="baseline", platform_ports=(8000, 8081)
    )

    assert_golden("outside", manifests_of([PHYSICS], settings))


def test_a_platform_of_unknown_address_gets_no_opening() -> None:
    names = [one["metadata"]["name"] for one in manifests_of([PHYSICS], KubernetesPolicySettings("campus", "", ""))]

    assert "commonage-default-deny" in names
    assert not {"commonage-platform", "commonage-proxy"} & set(names)


@pytest.mark.parametrize("name", ["physics", "a-b", "p" * 53])
def test_a_plain_tenant_keeps_its_name(name: str) -> None:
    assert namespace_of(name, SETTINGS) == f"commonage-{name}"


@given(st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
def test_names_are_valid_and_never_shared(names: list[str]) -> None:
    made = [object_name("home", name) for name in names]
    again = [object_name("home", one.removeprefix("home-")) for one in made]

    assert len(set(made)) == len(made)
    for name, one in zip([*names, *made], [*made, *again], strict=True):
        assert len(one) <= 63, name
        assert one.replace("-", "").isalnum()
        assert one.isascii()
        assert one == one.lower()
        assert not one.endswith("-")
    for name, one in zip(made, again, strict=True):
        assert one == name or one not in made
