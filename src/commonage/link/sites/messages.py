"""The first messages of a site link, and the requests of the link itself.

The site dials and sends `hello`; the control plane answers `welcome` or `refused`, each as one line of JSON. From then
on both sides send binary frames (`frames`).
"""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 1
"""The newest version that this program speaks. Raised when the two sides would misunderstand each other."""
OLDEST_PROTOCOL = 1
"""The oldest version that this program speaks: not newer than the one before PROTOCOL."""
SITE_URI = "commonage:site:"
"""Prefix of the URI by which a certificate names its site (a subject alternative name)."""


@dataclass(frozen=True, slots=True)
class SiteHello:
    """The first message of a site. `site` must be the name in its certificate; `now` is its time (unix seconds)."""

    site: str
    oldest_protocol: int
    protocol: int
    version: str
    now: float


@dataclass(frozen=True, slots=True)
class SiteWelcome:
    """`protocol` is the version to speak, `until` the end of the site's certificate.

    `now` is the control plane's time, `clock_offset_s` what it adds to times of the site.
    """

    protocol: int
    version: str
    now: float
    until: float
    clock_offset_s: float
