"""The settings of the registry of images: a part of `settings`' table."""

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
    if value is not None and not _HOST.fullmatch(value):
        raise ValueError("not a host name or an IPv4 address, without port")
    return None if value is None else value.lower()


def _bind(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


class ImageSettings(BaseModel):
    """Where images are kept that are built here. Ages are days."""

    registry: bool = setting(
        False,
        "Run a registry of images (docker-registry must be installed), with TLS of our own authority and the rights of "
        f"the tenants ({docs_page('operate/images')}).",
        Row("true or false", "Images"),
    )
    registry_bind: Annotated[str, AfterValidator(_bind)] = setting(
        "127.0.0.1", "Address of this machine at which the registry listens.", Row("an IP address", "Images")
    )
    registry_port: Annotated[int, Field(ge=1, le=65535)] = setting(
        5000, "Port of the registry; part of the name of each image in it.", Row("a port from 1 to 65535", "Images")
    )
    registry_host: Annotated[OptionalText, AfterValidator(_host)] = setting(
        None,
        "Name or address by which all nodes reach the registry; part of the name of each image in it. The address "
        "that it listens at if left out, the name of this machine where that is all of them.",
        Row("a host name or an IPv4 address", "Images"),
    )
    registry_keep_days: Annotated[int, Field(ge=0, le=36_500)] = setting(
        14,
        "How many days an image stays in the registry that the catalogue does not name (any more).",
        Row("a number of days", "Images"),
    )
    prepull: bool = setting(
        True,
        "Bring every image of the catalogue to every node before anybody waits for it; else only on first use, and "
        "where somebody asks (`commonage image prepull`).",
        Row("true or false", "Images"),
    )
