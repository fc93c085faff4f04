"""The settings of how other nodes join and reach this one, and of node pools in clouds."""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from commonage.clouds.libcloud_machines import Rental, driver_of
from commonage.domain.nodes import MachineKind, NodePoolPolicy
from commonage.server.settings.fields import (
    UNIQUE_NAMES,
    Entry,
    IpAddress,
    Mib,
    MibOrZero,
    Milli,
    OptionalText,
    Port,
    PortOrFree,
    Seconds,
    Takes,
    check_domain,
    host_or_address,
    setting,
    split_list,
)
from commonage.server.settings.node import Labels
from commonage.wire.hub import docs_page


def _endpoints(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        address, _, port = one.rpartition(":")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise ValueError(f"{one} is not like 10.0.0.5:3141") from None
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError(f"{one} is not like 10.0.0.5:3141")
    return value


class JoinSettings(BaseModel):
    """How machines join, and how the agents of nodes connect."""

    site_address: Annotated[OptionalText, AfterValidator(host_or_address)] = setting(
        None,
        "Name or address at which other nodes reach this one. Nodes can join only if it is set "
        f"({docs_page('operate/join-nodes')}).",
        "a host name or an IP address",
    )
    joining_bind: IpAddress = setting("0.0.0.0", "Address at which the join listener accepts machines that join.")
    joining_port: Port = setting(
        8445, "Port of the join listener. It uses TLS with a certificate of the server's own authority."
    )
    agents_bind: IpAddress = setting(
        "0.0.0.0",
        "Address at which the agents of nodes connect. Agents need a certificate of the server's own authority.",
    )
    agents_port: PortOrFree = setting(8444, "Port at which the agents of nodes connect.")
    containers_reach: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_endpoints),
        Takes("addresses with ports like 10.0.0.5:3141, separated by commas"),
    ] = setting(
        (),
        "Addresses in the site's networks that containers on Swarm nodes may reach in addition to the hub, such as a "
        f"package mirror or a database ({docs_page('operate/agents')}).",
    )


class NodePoolEntry(Entry):
    """One `[[node_pools]]` table."""

    name: str
    provider: Annotated[str, Field(min_length=1)]
    size: Annotated[str, Field(min_length=1)]
    image: Annotated[str, Field(min_length=1)]
    location: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    min: int = 0
    max: int = 1
    idle: Seconds = 900
    wait: Seconds = 60
    join_within: Seconds = 900
    cpus: Milli
    memory: Mib
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    gpu_model: str = ""
    gpu_memory: MibOrZero = 0
    labels: Labels = Field(default_factory=dict)
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    join_options: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> NodePoolEntry:
        check_domain(lambda: self.policy().check())
        check_domain(lambda: driver_of(self.rental()))
        if self.gpus and not (self.gpu_model and self.gpu_memory):
            raise ValueError("nodes with GPUs need gpu_model and gpu_memory, so that the scheduler knows what fits")
        return self

    def policy(self) -> NodePoolPolicy:
        """The policy in the form of the domain."""
        kind = MachineKind(
            self.cpus,
            self.memory,
            self.gpus,
            self.gpu_model,
            self.gpu_memory,
            self.price,
            tuple(sorted({**self.labels, "node-pool": self.name}.items())),
        )
        return NodePoolPolicy(
            self.name,
            kind,
            least=self.min,
            most=self.max,
            idle_s=self.idle,
            wait_s=self.wait,
            join_s=self.join_within,
            join_options=self.join_options,
        )

    def rental(self) -> Rental:
        """What the cloud is asked for. Credentials come only from COMMONAGE_NODE_POOL_<NAME>_KEY and …_SECRET."""
        prefix = f"COMMONAGE_NODE_POOL_{self.name.upper().replace('-', '_')}"
        key, secret = os.environ.get(f"{prefix}_KEY", ""), os.environ.get(f"{prefix}_SECRET", "")
        account = (key, secret, self.location)
        return Rental(self.provider, self.size, self.image, *account, self.arguments, self.options)


class NodePoolSettings(BaseModel):
    """Node pools."""

    node_pools: Annotated[tuple[NodePoolEntry, ...], UNIQUE_NAMES] = setting(
        (),
        "Node pools: cloud nodes that are added while workloads wait for them and removed when they are idle "
        f"({docs_page('operate/node-pools')}).",
    )
