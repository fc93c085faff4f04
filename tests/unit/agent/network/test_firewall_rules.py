"""The rules of the firewall, and what is looked up for them in the kernel's own tables."""

from pathlib import Path

import pytest

from commonage.agent.network.firewall_rules import (
    Plan,
    name_servers,
    own_addresses,
    plan_for,
    rules_of,
    rules_of_ipv6,
    site_networks,
)
from commonage.ports.agents import NodeNetwork

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker_gwbridge\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
br-0123456789ab\t000013AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 192.168.1.0
        /24 link UNICAST
     |-- 192.168.1.7
        /32 host LOCAL
     |-- 192.168.1.255
        /32 link BROADCAST
Local:
     |-- 192.168.1.7
        /32 host LOCAL
"""


def test_rules_reject_after_the_exceptions() -> None:
    plan = Plan(
        interfaces=("docker_gwbridge",),
        networks=("192.168.1.0/24",),
        allowed=(("192.168.1.1", 8081), ("192.168.1.7", 8082)),
        servers=("192.168.1.2",),
        own=("192.168.1.7",),
    )
    forward = "-A COMMONAGE-FORWARD -i docker_gwbridge"
    inside = "-A COMMONAGE-INPUT -i docker_gwbridge"
    assert rules_of(plan).splitlines() == [
        "*filter",
        ":COMMONAGE-FORWARD - [0:0]",
        ":COMMONAGE-INPUT - [0:0]",
        "-A COMMONAGE-FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-A COMMONAGE-INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        f"{forward} -d 192.168.1.1 -p tcp --dport 8081 -j RETURN",
        f"{inside} -d 192.168.1.7 -p tcp --dport 8082 -j RETURN",
        f"{forward} -d 192.168.1.2 -p udp --dport 53 -j RETURN",
        f"{forward} -d 192.168.1.2 -p tcp --dport 53 -j RETURN",
        f"{forward} -d 169.254.0.0/16 -j REJECT",
        f"{forward} -d 192.168.1.0/24 -j REJECT",
        f"{forward} -o docker_gwbridge -j REJECT",
        f"{inside} -j REJECT",
        "COMMIT",
    ]


def test_published_ports_accept_only_their_sources() -> None:
    plan = Plan(("docker0",), published=(20000, 29999), sources=("10.0.0.1/32", "fd00::/64"))
    ports = "-p tcp --dport 20000:29999"
    published = [one for one in rules_of(plan).splitlines() if "--dport" in one]
    assert published == [
        f"-A COMMONAGE-FORWARD -o docker_gwbridge -s 10.0.0.1/32 {ports} -j RETURN",
        f"-A COMMONAGE-FORWARD -o docker_gwbridge {ports} -j REJECT",
    ]
    assert rules_of_ipv6(plan).splitlines() == [
        "*filter",
        ":COMMONAGE-INPUT - [0:0]",
        "-A COMMONAGE-INPUT -i lo -j RETURN",
        "-A COMMONAGE-INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        f"-A COMMONAGE-INPUT -s fd00::/64 {ports} -j RETURN",
        f"-A COMMONAGE-INPUT {ports} -j REJECT",
        "COMMIT",
    ]


def test_site_networks_exclude_container_bridges(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(ROUTES)
    (tmp_path / "net/fib_trie").write_text(TRIE)
    assert [str(one) for one in site_networks(tmp_path / "net/route")] == ["192.168.1.0/24"]
    assert own_addresses(tmp_path / "net/fib_trie") == ["192.168.1.7"]
    plan = plan_for(["docker0"], ["10.0.0.0/8"], ["192.168.1.1:80"], NodeNetwork(), proc=tmp_path)
    assert plan.networks == ("192.168.1.0/24", "10.0.0.0/8")
    assert plan.allowed == (("192.168.1.1", 80),)


@pytest.mark.parametrize("reaches", ["hub:80", "10.0.0.1:http", "10.0.0.1"])
def test_refuses_invalid_addresses(tmp_path: Path, reaches: str) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(ROUTES)
    with pytest.raises(ValueError, match=r".+"):
        plan_for(["docker0"], [], [reaches], NodeNetwork(), proc=tmp_path)


def test_name_servers_exclude_the_loopback(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# made by\nnameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver fe80::1\nsearch lab\nnameserver\n"
    )
    assert name_servers(file) == ["10.0.0.2"]
    assert name_servers(tmp_path / "none") == []
