"""The first messages of a site link, and the choice of its protocol version.

The site dials and sends `hello`; the control plane answers `welcome` or `refused`, each as one line of JSON. From then
on both sides send binary frames (`frames`).
"""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 2
"""The newest version that this program speaks. Raised when the two sides would misunderstand each other."""
CRON_PROTOCOL = 2
"""From this version on, a site fires cron jobs while its link is down."""
OLDEST_PROTOCOL = 1
"""The oldest version that this program speaks: not newer than the one before PROTOCOL."""
SITE_URI = "commonage:site:"
"""Prefix of the URI by which a certificate names its site (a subject alternative name)."""
TUNNELS_PROTOCOL = 2
"""Since this version, the site dials a connection for each tunnel; before, tunnels were streams of the link."""
MAX_CLOCK_OFFSET_S = 2.0
"""Above this difference of the clocks, admins get a notice."""


@dataclass(frozen=True, slots=True)
class Protocols:
    """The versions that one side speaks."""

    oldest: int = OLDEST_PROTOCOL
    newest: int = PROTOCOL

    def agree(self, other: Protocols) -> int | None:
        """The newest version that both sides speak; None without a common version."""
        agreed = min(self.newest, other.newest)
        return agreed if agreed >= max(self.oldest, other.oldest) else None

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


@dataclass(frozen=True, slots=True)
class SiteHello:
    """The first message of a site. `site` must be the name in its certificate; `now` is its time (unix seconds).

    `probe`: the site only asks whether it is admitted; after the answer the connection ends, and no link begins.
    `tunnel`: the connection is no link, and answers this DIAL_TUNNEL.
    """

    site: str
    protocols: Protocols
    version: str
    now: float
    probe: bool = False
    tunnel: int | None = None


@dataclass(frozen=True, slots=True)
class SiteWelcome:
    """`protocol` is the version to speak, `until` the end of the site's certificate.

    `now` is the control plane's time; a time of the site plus `clock_offset_s` is one of the control plane.
    """

    protocol: int
    version: str
    now: float
    until: float
    clock_offset_s: float
