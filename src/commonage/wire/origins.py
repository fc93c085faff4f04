"""Where browsers reach sessions: below which name, and which name each user has there. Used by the hub and the server.

What browsers call an origin (scheme, name and port) is what they keep apart. A user's server runs that user's code, so
it must not share an origin with the hub and the portal, nor with another user's server.
"""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import quote, urlsplit

# No two hyphens in a row: those are in the labels that are made from a digest, and nowhere else.
_PLAIN_LABEL = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_STUB = re.compile(r"[^a-z0-9]", re.ASCII)
_STUB_CHARACTERS = 20


def label_of(user: str) -> str:
    """The DNS label of a user's sessions: the name itself if it can be one, else a digest of it.

    Two users never share a label, even if one of them chooses a name for that: the digest has 160 bits.
    """
    if _PLAIN_LABEL.fullmatch(user):
        return user
    digest = base64.b32encode(hashlib.sha256(user.encode()).digest()[:20]).decode().lower()
    stub = _STUB.sub("", user.lower())[:_STUB_CHARACTERS] or "x"
    return f"u-{stub}--{digest}"


def session_domain(session_origin: str) -> str:
    """`hub.example.org` for `https://*.hub.example.org:8443`."""
    return (urlsplit(session_origin).hostname or "").removeprefix("*.")


def session_url(session_origin: str, user: str, name: str) -> str:
    """Where browsers reach a session. `session_origin` is like `https://*.hub.example.org`.

    If that is empty, all share one origin, and this is a path below its address.
    """
    path = f"/user/{quote(user, safe='@~')}/"
    if name:
        path += f"{quote(name, safe='@~')}/"
    return session_origin.replace("*", label_of(user), 1) + path
