"""What the proxy's two sets of rules agree on: the hub's, and those of the page that is shown while parts are down.

Apart from `wire.hub`, as the process that serves the page imports no pydantic.
"""

from __future__ import annotations

UNAVAILABLE = "unavailable"
"""traefik's middleware for routes to hub and control plane: shows the page where they do not answer."""
