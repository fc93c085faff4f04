"""Which networks this machine is in already: those of tenants are cut from what is left. Called in threads."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from socket import AddressFamily

import psutil


def networks_here(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """The IPv4 networks that this machine has an address in or a route to; a default route is none."""
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
