"""The settings of where browsers reach us: a part of `settings`' table."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel

from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import OptionalText
from commonage.wire.docs import docs_page

AUTO, NONE = "auto", "none"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_WILDCARD = re.compile(rf"\*(\.{_LABEL})+", re.ASCII)
_LONGEST = 253 - 63  # of a DNS name, less the label of a user


def _session_host(value: str) -> str:
    value = value.strip().lower().rstrip(".") or AUTO  # a compose file passes on an empty text
    if value in (AUTO, NONE):
        return value
    if not _WILDCARD.fullmatch(value) or len(value) > _LONGEST or _is_address(value.removeprefix("*.")):
        raise ValueError("not a wildcard name")
    return value


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


class OriginSettings(BaseModel):
    """Where browsers reach hub and portal, and where sessions."""

    public_url: OptionalText = setting(
        None,
        "What people type if an edge with HTTPS stands in front.",
        Row("an address like https://hub.example.org", "Where"),
    )
    session_host: Annotated[str, AfterValidator(_session_host)] = setting(
        AUTO,
        "Wildcard name below which every user's sessions have a name, and so an origin, of their own "
        f"({docs_page('operate/origins')}). `auto` takes `*.localhost` if people reach the server on the loopback, and "
        "otherwise `none`: sessions share the origin of hub and portal, and scripts of one user reach others.",
        Row("auto, none, or a wildcard name like *.hub.example.org", "Where"),
    )
