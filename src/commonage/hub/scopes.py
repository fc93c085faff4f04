"""What a token may do at the control plane: one table, from which roles, the session's token and the docs are made.

The names are `commonage.domain.principals.Scope`; a test holds the two together.
"""

from __future__ import annotations

from typing import Any

from commonage.wire.hub import SERVICE_NAME

READ = "custom:commonage:read"
SUBMIT = "custom:commonage:submit"
ADMIN = "custom:commonage:admin"

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See your own workloads, what is free, and your usage."},
    SUBMIT: {"description": "Start, change and stop your own workloads.", "subscopes": [READ]},
    ADMIN: {"description": "See and stop everybody's workloads, and manage the machines.", "subscopes": [SUBMIT]},
}

_REACH_PORTAL = f"access:services!service={SERVICE_NAME}"

# What everybody who can sign in may do, and what is added to JupyterHub's own admin role.
USER_SCOPES = ["self", _REACH_PORTAL, SUBMIT, READ]
ADMIN_SCOPES = [ADMIN, SUBMIT, READ]

# What the portal gets to know of a user who signs in to it.
PORTAL_SCOPES = [_REACH_PORTAL, ADMIN, SUBMIT, READ]

# What the token inside a session may do: the two things every session does, and work with its owner's
# workloads.
SESSION_SCOPES = ["users:activity!user", "access:servers!server", SUBMIT, READ]
