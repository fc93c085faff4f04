"""The networks that a node is in, from its addresses and its routes."""

from ipaddress import IPv4Network
from pathlib import Path
from socket import AF_INET, AF_INET6
from types import SimpleNamespace

import psutil
import pytest

from commonage.engines.containers.daemon.networks import addresses_here, network_at, networks_here


def test_routes_and_addresses_are_networks_and_the_default_route_is_none(tmp_path: Path) -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    table = tmp_path / "route"
    table.write_text(f"{head}\neth0\t00000000\t0\t3\t0\t0\t0\t00000000\ntun0\t0000D50A\t0\t1\t0\t0\t0\t0000FFFF\n")
    found = networks_here(table)
    assert IPv4Network("10.213.0.0/16") in found
    assert IPv4Network("127.0.0.0/8") in found
    assert IPv4Network("0.0.0.0/0") not in found


def test_this_node_reaches_others_by_its_addresses_at_cables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(*found: tuple[int, str, str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(family=family, address=address, netmask=mask) for family, address, mask in found]

    there = {
        "lo": at((AF_INET, "127.0.0.1", "255.0.0.0")),
        "eth0": at(
            (AF_INET, "10.0.0.5", "255.255.255.0"),
            (AF_INET6, "fd00::5", "ffff:ffff:ffff:ffff::"),
            (AF_INET6, "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
        ),
        "docker_gwbridge": at((AF_INET, "172.18.0.1", "255.255.0.0")),
        "br-0123456789ab": at((AF_INET, "10.213.0.1", "255.255.254.0")),
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    assert addresses_here() == ["10.0.0.5", "fd00::5"]
    assert network_at("docker_gwbridge") == IPv4Network("172.18.0.0/16")
    assert network_at("docker9") is None
