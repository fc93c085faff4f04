"""The settings of the Swarm engine alone: a part of `settings`' table. It has those of the Docker engine, too."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator

from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import OptionalPath, OptionalText, PrivateRange, listed
from commonage.wire.docs import docs_page


def _source_ranges(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise ValueError(f"{one} is not like 10.0.0.7 or 10.0.0.0/24: {error}") from None
    return value


_SourceRanges = Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(_source_ranges)]


class SwarmSettings(BaseModel):
    """Where the nodes of a Swarm meet."""

    shared_dir: OptionalPath = setting(
        None,
        "Folder that every node of a Swarm sees under this very path: workspaces and logs lie there. The data "
        f"folder if left out; then only the control plane's own machine takes work ({docs_page('operate/swarm')}).",
        Row("a folder", "Containers"),
    )
    swarm_without_agents: bool = setting(
        False,
        "Whether nodes without an agent take work, too. Root of any node of the Swarm can then have the folders "
        f"of workloads there lead anywhere on such a node ({docs_page('operate/swarm')}).",
        Row("true or false", "Containers"),
    )
    swarm_address: OptionalText = setting(
        None,
        "Address of this machine by which containers on all nodes reach the hub; what Swarm says it is if left out.",
        Row("an IP address of this machine", "Containers"),
    )
    swarm_networks: PrivateRange = setting(
        "10.214.0.0/16",
        "Range of addresses for the networks of the tenants over all nodes of a Swarm.",
        Row("a private range like 10.214.0.0/16", "Containers"),
    )
    swarm_encrypted: bool = setting(
        False,
        "Whether what passes between nodes on the networks of the tenants is encrypted, which costs some speed.",
        Row("true or false", "Containers"),
    )
    port_source_ranges: _SourceRanges = setting(
        (),
        "Addresses that may connect to the ports of sessions and services on a Swarm's nodes, besides the addresses "
        "of this machine: a network from which people call services directly, by plain HTTP; or the address by which "
        "others see this machine where it does not have that itself (NAT).",
        Row("addresses or networks like 10.0.0.0/24, with commas between", "Nodes"),
    )
