"""The settings of how other nodes reach this one to join it: a part of `settings`' table."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import OptionalText
from commonage.wire.docs import docs_page

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*", re.ASCII)


def _host(value: str | None) -> str | None:
    if value is None or _HOST.fullmatch(value):
        return value
    try:
        return str(ipaddress.ip_address(value.strip("[]")))
    except ValueError:
        raise ValueError("not a host name or an IP address, without port") from None


def _bind(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


class NodeSettings(BaseModel):
    """Where nodes knock that are to join."""

    site_address: Annotated[OptionalText, AfterValidator(_host)] = setting(
        None,
        "Name or address by which other nodes reach this one. Nodes can join once it is set "
        f"({docs_page('operate/join-nodes')}).",
        Row("a host name or an IP address", "Nodes"),
    )
    joining_bind: Annotated[str, AfterValidator(_bind)] = setting(
        "0.0.0.0",
        "Address of this machine at which machines that join are listened for, if they can.",
        Row("an IP address", "Nodes"),
    )
    joining_port: Annotated[int, Field(ge=1, le=65535)] = setting(
        8445, "Port for machines that join, with TLS of our own authority.", Row("a port from 1 to 65535", "Nodes")
    )
