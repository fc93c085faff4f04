"""Addresses that may connect to the relays of a cluster."""

from typing import Any

from commonage.engines.kubernetes.channels.peers import Peers


def pod(uid: str, address: str = "", phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": {"phase": phase, **({"podIP": address} if address else {})}}


def node(uid: str, *addresses: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": {"addresses": [{"address": one} for one in addresses]}}


def test_a_pod_may_connect_from_its_address_until_it_ends() -> None:
    peers = Peers()
    peers.put_pod(pod("a", phase="Pending"))
    assert "10.0.0.1" not in peers
    peers.put_pod(pod("a", "10.0.0.1"))
    assert "10.0.0.1" in peers
    peers.put_pod(pod("a", "10.0.0.1", "Succeeded"))
    assert "10.0.0.1" not in peers, "the cluster may give it to another Pod"


def test_an_address_stays_while_another_object_has_it() -> None:
    peers = Peers()
    peers.put_node(node("n", "192.0.2.1", "node-1"))
    peers.put_pod(pod("a", "192.0.2.1"))
    peers.remove(pod("a"))
    assert "192.0.2.1" in peers
    peers.put_node(node("n", "192.0.2.2"))
    assert "192.0.2.1" not in peers
    peers.remove(node("n"))
    peers.remove(node("n"))
    assert "192.0.2.2" not in peers
