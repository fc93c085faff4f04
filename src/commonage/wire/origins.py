"""Origins and URLs of sessions, and a name of the proxy's rules. Used by the hub and the server; needs no pydantic.

Browsers isolate origins (scheme, name and port) from each other. A session runs its user's code, so it must not share
an origin with the hub and the portal, nor with another user's session.
"""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import quote, urlsplit

UNAVAILABLE = "unavailable"
"""The traefik middleware that shows the page where the hub or the control plane does not answer."""

SESSION_UNAVAILABLE = "session-unavailable"
"""The same for pages of sessions."""

SERVICE_LABEL = "service--"
SERVICE_PATH = "/service/"

# No two consecutive hyphens: only labels with a digest contain them.
_PLAIN_LABEL = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_STUB = re.compile(r"[^a-z0-9]", re.ASCII)
_STUB_CHARACTERS = 20


def label_of(user: str) -> str:
    """The DNS label of a user's sessions: the user name if it is a valid label, otherwise a digest of it.

    Two users never share a label, even if one chooses a name for that purpose: the digest has 160 bits.
    """
    if _PLAIN_LABEL.fullmatch(user):
        return user
    digest = base64.b32encode(hashlib.sha256(user.encode()).digest()[:20]).decode().lower()
    stub = _STUB.sub("", user.lower())[:_STUB_CHARACTERS] or "x"
    return f"u-{stub}--{digest}"


def session_domain(session_origin: str) -> str:
    """`hub.example.org` for `https://*.hub.example.org:8443`."""
    return (urlsplit(session_origin).hostname or "").removeprefix("*.")


def service_url(session_origin: str, workload_id: str) -> str:
    """The URL of a service; each has an origin of its own. If `session_origin` is empty, the result is a path."""
    if not session_origin:
        return f"{SERVICE_PATH}{workload_id}/"
    # No user has this label: only labels with a digest contain two hyphens, and they begin with `u-`.
    return session_origin.replace("*", f"{SERVICE_LABEL}{workload_id}", 1) + "/"


def session_url(session_origin: str, user: str, name: str) -> str:
    """The URL of a session. `session_origin` is like `https://*.hub.example.org`.

    If it is empty, sessions share the origin of the portal, and the result is a path.
    """
    path = f"/user/{quote(user, safe='@~')}/"
    if name:
        path += f"{quote(name, safe='@~')}/"
    return session_origin.replace("*", label_of(user), 1) + path
