"""NetworkPolicies of a tenant's namespace: all traffic is denied, except as allowed here."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import KIND, metadata
from commonage.engines.settings import KubernetesPolicySettings

PORT_NAME = "commonage"
"""The name of the port of a session or service in its container."""
_EVERYWHERE = ("0.0.0.0/0", "::/0")
_NAMESPACE = "kubernetes.io/metadata.name"
_METADATA = ("169.254.0.0/16", "fd00:ec2::254/128")  # of clouds: they hand out the node's credentials


def network_policies(
    namespace: str, labels: Mapping[str, str], settings: KubernetesPolicySettings
) -> tuple[Manifest, ...]:
    platform = _platform(settings)
    dns = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    with_port = {"matchExpressions": [{"key": KIND, "operator": "In", "values": ["session", "service"]}]}
    made: dict[str, Manifest] = {
        "default-deny": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        "dns": _egress([dns], [("UDP", 53), ("TCP", 53)]),
    }
    if platform:
        made["platform"] = _egress(platform, [("TCP", port) for port in settings.platform_ports])
        made["proxy"] = {
            "podSelector": with_port,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": platform, "ports": [{"protocol": "TCP", "port": PORT_NAME}]}],
        }
    if settings.internet:
        closed = (*settings.closed_networks, *settings.node_networks, *_METADATA)
        made["internet"] = _egress([_without(network, closed) for network in _EVERYWHERE], [])
    kept = (*settings.node_networks, *_METADATA)
    if opened := [one for one in settings.open_networks if not _is_within(one, kept)]:
        made["open-networks"] = _egress([_without(network, kept) for network in opened], [])
    return tuple(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(
                f"commonage-{name}", settings.installation, labels, namespace=namespace, part="policy"
            ),
            "spec": spec,
        }
        for name, spec in made.items()
    )


def _platform(settings: KubernetesPolicySettings) -> list[Manifest]:
    """Where hub, proxy and control plane are: a namespace, or an address outside the cluster; empty if unknown."""
    if settings.namespace:
        return [{"namespaceSelector": {"matchLabels": {_NAMESPACE: settings.namespace}}}]
    try:
        return [{"ipBlock": {"cidr": str(ipaddress.ip_network(settings.address))}}]
    except ValueError:
        return []


def _egress(to: Sequence[Manifest], ports: Sequence[tuple[str, int]]) -> Manifest:
    rule: Manifest = {"to": list(to)}
    if ports:
        rule["ports"] = [{"protocol": protocol, "port": port} for protocol, port in ports]
    return {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}


def _is_within(network: str, closed: Sequence[str]) -> bool:
    part = ipaddress.ip_network(network)
    wholes = map(ipaddress.ip_network, closed)
    return any(one.version == part.version and part.subnet_of(one) for one in wholes)  # type: ignore[arg-type] # one version


def _without(network: str, closed: Sequence[str]) -> Manifest:
    """The network without the closed ones. The API takes as exceptions only parts that are smaller than the whole."""
    whole = ipaddress.ip_network(network)
    inner = {
        one for text in closed if (one := ipaddress.ip_network(text)).version == whole.version and one != whole
        and one.subnet_of(whole)  # type: ignore[arg-type] # both have the same version
    }  # fmt: skip
    block: Manifest = {"cidr": network}
    if inner:
        block["except"] = [str(one) for one in sorted(inner, key=str)]
    return {"ipBlock": block}
