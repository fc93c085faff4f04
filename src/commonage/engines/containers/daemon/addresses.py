"""Networks that this computer is in already: tenants' networks are cut from the rest. Called in threads."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from socket import AddressFamily

import psutil

_OF_CONTAINERS = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|veth.*|lo")


def addresses_here() -> list[str]:
    """IP addresses that others can reach: none of the loopback, of bridges, or of point-to-point links."""
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (AddressFamily.AF_INET, AddressFamily.AF_INET6) and not _OF_CONTAINERS.fullmatch(
                interface
            ):
                address = ip_address(one.address.partition("%")[0])
                if not address.is_link_local and not address.is_loopback:
                    found.append(str(address))
    return found


def network_at(interface: str) -> IPv4Network | None:
    """The IPv4 network of this interface; None if it has none, or does not exist."""
    for one in psutil.net_if_addrs().get(interface, ()):
        if one.family is AddressFamily.AF_INET and one.netmask:
            return IPv4Network((one.address, one.netmask), strict=False)
    return None


def networks_here(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """IPv4 networks that this computer has an address in or a route to; default routes are excluded."""
    found = []
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family is AddressFamily.AF_INET and one.netmask:
                found.append(IPv4Network((one.address, one.netmask), strict=False))
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            found.append(IPv4Network((destination, mask.bit_count())))
    return found
