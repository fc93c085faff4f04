"""The origins that browsers see: that of hub and portal, and those of users' sessions.

Called by the bootstrap and by the doctor.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from commonage.domain.errors import InvalidInput
from commonage.server.settings.server import AUTO, NONE
from commonage.server.settings.settings import Settings
from commonage.wire.hub import docs_page
from commonage.wire.origins import session_domain

_LOCAL = "*.localhost"
GUIDE = docs_page("operate/origins")


@dataclass(frozen=True, slots=True)
class Origins:
    """`hub` is like `https://hub.example.org`, or None if users reach hub and portal by any address of the node.

    `sessions` is like `https://*.hub.example.org`; empty if sessions share the origin of hub and portal.
    """

    hub: str | None
    sessions: str = ""


def origins_of(settings: Settings, port: int) -> Origins:
    """Decide from the settings; `port` is the one that users reach. Raises InvalidInput."""
    wildcard = settings.session_host
    if wildcard == AUTO:
        wildcard = _LOCAL if _is_local(settings) else NONE
    if wildcard == NONE:
        return Origins(settings.public_url and settings.public_url.rstrip("/"))
    hub = _hub_origin(settings, port, wildcard)
    parts = urlsplit(hub)
    sessions = f"{parts.scheme}://{wildcard}" + (f":{parts.port}" if parts.port else "")
    host = parts.hostname or ""
    if host.partition(".")[2] == session_domain(sessions):
        raise InvalidInput(
            f"session_host = {wildcard} also matches {host}, the name of hub and portal: a user of that name would "
            f"receive their requests. Use *.{host}, or a separate domain.",
            field="session_host",
        )
    return Origins(hub, sessions)


def warning_of(origins: Origins) -> str:
    """The warning for admins and its remedy; empty if sessions have origins of their own."""
    if origins.sessions:
        return ""
    return (
        "Sessions share one origin with hub and portal. A user who opens a link to another user's session lets its "
        "owner act in their sessions, and over plain HTTP also in portal and hub. Set session_host to a wildcard name "
        f"such as *.hub.example.org, and serve by HTTPS ({GUIDE})."
    )


def _is_local(settings: Settings) -> bool:
    return settings.public_url is None and settings.bind in ("127.0.0.1", "::1")  # the addresses of `localhost`


def _hub_origin(settings: Settings, port: int, wildcard: str) -> str:
    if settings.public_url is not None:
        parts = urlsplit(settings.public_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise InvalidInput(
                f"Invalid public_url {settings.public_url}: session_host needs a scheme and a name without a path, for "
                "example https://hub.example.org.",
                field="public_url",
            )
        return f"{parts.scheme}://{parts.netloc}".lower()
    if wildcard == _LOCAL and _is_local(settings):
        return f"http://localhost:{port}"
    raise InvalidInput(
        f"session_host = {wildcard} needs public_url, the address of hub and portal for users. Set public_url, for "
        f"example to https://{wildcard.removeprefix('*.')}.",
        field="session_host",
    )
