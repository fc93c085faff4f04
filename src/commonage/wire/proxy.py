"""A name that two sets of traefik rules share: those of the hub, and those of the "unavailable" page.

Separate from `wire.hub`, because the process that serves the page must not import pydantic.
"""

from __future__ import annotations

UNAVAILABLE = "unavailable"
"""The traefik middleware that shows the page where the hub or the control plane does not answer."""
