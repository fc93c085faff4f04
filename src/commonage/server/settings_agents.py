"""The settings of how the agents of other machines reach this one: a part of `settings`' table."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel

from commonage.server.settings_table import A_PORT, Row, setting
from commonage.server.settings_types import Port


def _bind(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


class AgentSettings(BaseModel):
    """Where the agents of a Swarm's machines dial."""

    agents_bind: Annotated[str, AfterValidator(_bind)] = setting(
        "0.0.0.0",
        "Address of this machine at which the agents of a Swarm's machines are listened for; who has no certificate of "
        "our own authority is not let in.",
        Row("an IP address", "Machines"),
    )
    agents_port: Port = setting(8444, "Port for the agents of a Swarm's machines.", Row(A_PORT, "Machines"))
