"""The networks that a machine is in, from its addresses and its routes."""

from ipaddress import IPv4Network
from pathlib import Path

from commonage.engines.containers.addresses import networks_here


def test_routes_and_addresses_are_networks_and_the_default_route_is_none(tmp_path: Path) -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
    table = tmp_path / "route"
    table.write_text(f"{head}\neth0\t00000000\t0\t3\t0\t0\t0\t00000000\ntun0\t0000D50A\t0\t1\t0\t0\t0\t0000FFFF\n")
    found = networks_here(table)
    assert IPv4Network("10.213.0.0/16") in found
    assert IPv4Network("127.0.0.0/8") in found
    assert IPv4Network("0.0.0.0/0") not in found
