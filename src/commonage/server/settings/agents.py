"""The settings of how the agents of other nodes reach this one: a part of `settings`' table."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator

from commonage.server.settings.table import A_PORT, Row, setting
from commonage.server.settings.types import Port, listed
from commonage.wire.docs import docs_page


def _bind(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


def _gates(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        address, _, port = one.rpartition(":")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise ValueError(f"{one} is not like 10.0.0.5:3141") from None
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError(f"{one} is not like 10.0.0.5:3141")
    return value


class AgentSettings(BaseModel):
    """Where the agents of a Swarm's nodes dial."""

    agents_bind: Annotated[str, AfterValidator(_bind)] = setting(
        "0.0.0.0",
        "Address of this machine at which the agents of a Swarm's nodes are listened for; who has no certificate of "
        "our own authority is not let in.",
        Row("an IP address", "Nodes"),
    )
    agents_port: Port = setting(8444, "Port for the agents of a Swarm's nodes.", Row(A_PORT, "Nodes"))
    containers_reach: Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(_gates)] = setting(
        (),
        "What of the site's own networks containers on a Swarm's nodes may reach, beside the hub: a package mirror, "
        f"a database ({docs_page('operate/agents')}).",
        Row("addresses with ports like 10.0.0.5:3141, with commas between", "Nodes"),
    )
