"""The settings of HTTPS: the name of the server, its certificates, and the addresses and limits of Caddy."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from commonage.resources.fields import DiskMib
from commonage.server.settings.fields import IpAddress, OptionalPath, OptionalText, Port, no_empty, setting
from commonage.wire.hub import docs_page

ACME, INTERNAL = "acme", "internal"
_NAME = re.compile(r"(?=.{1,189}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+", re.ASCII)
_HTTPS_URL = re.compile(r"https://[^\s/]+(/\S*)?")


def _domain(value: str | None) -> str | None:
    if value is None:
        return None
    value = value.strip().lower().rstrip(".")
    if _is_address(value) or not _NAME.fullmatch(value):
        raise ValueError("not a DNS name with a dot, without https:// and port")
    return value


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _tls(value: str) -> str:
    value = value.strip() or ACME
    if value not in (ACME, INTERNAL) and len(value.split()) != 2:
        raise ValueError("neither a certificate authority nor two files")
    return value


def _acme_url(value: str | None) -> str | None:
    if value is not None and not _HTTPS_URL.fullmatch(value):
        raise ValueError("not an address that begins with https://")
    return value


class HttpsSettings(BaseModel):
    domain: Annotated[str | None, AfterValidator(_domain), BeforeValidator(no_empty)] = setting(
        None,
        "DNS name of the server. With it, the server starts Caddy and serves HTTPS under this name "
        f"({docs_page('operate/https')}). `public_url` is then `https://NAME`, and `session_host` is `*.NAME` unless "
        "it is set.",
        "a DNS name like gpu.example.org",
        flag="--domain",
    )
    tls: Annotated[str, AfterValidator(_tls)] = setting(
        ACME,
        "Certificates for `domain`. `acme`: from a public authority (Let's Encrypt, unless `acme_url` is set). "
        "`internal`: from an authority that Caddy creates; browsers must be made to trust it. Two files: a certificate "
        "chain and its key, for `domain` and the names of sessions.",
        "acme, internal, or two files: /path/chain.pem /path/key.pem",
        flag="--tls",
    )
    acme_email: OptionalText = setting(
        None, "E-mail address for the ACME account. The authority may use it for warnings.", "an e-mail address"
    )
    acme_url: Annotated[str | None, AfterValidator(_acme_url), BeforeValidator(no_empty)] = setting(
        None,
        "Directory of the ACME server. Default: Let's Encrypt, then ZeroSSL.",
        "an address like https://ca.example.org/acme/directory",
    )
    acme_root: OptionalPath = setting(
        None, "Certificate of the authority that signed the ACME server's own certificate, if it is private.", "a file"
    )
    https_bind: IpAddress = setting(
        "0.0.0.0",
        "Address for HTTPS and for the redirect from HTTP. `0.0.0.0` listens on all addresses, IPv6 included.",
        flag="--https-bind",
    )
    https_port: Port = setting(443, "Port for HTTPS.", flag="--https-port")
    http_port: Port = setting(80, "Port that redirects HTTP to HTTPS, and answers the ACME server.", flag="--http-port")
    max_request: Annotated[DiskMib, Field(ge=1)] = setting(
        8 * 1024, "Largest body of a request over HTTPS. Headers are limited to 64 KiB."
    )


def certificate_files(tls: str) -> tuple[Path, Path] | None:
    """The files that `tls` names: the chain and its key. None if it names an authority."""
    if tls in (ACME, INTERNAL):
        return None
    chain, key = tls.split()
    return Path(chain), Path(key)
