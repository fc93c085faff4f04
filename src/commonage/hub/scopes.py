"""What a token may do at the control plane: one table, from which roles, the session's token and the docs are made.

The names are `commonage.domain.principals.Scope`; a test holds the two together.
"""

from __future__ import annotations

from typing import Any

from commonage.wire.hub import SERVICE_NAME

READ = "custom:commonage:read"
SUBMIT = "custom:commonage:submit"
ADMIN = "custom:commonage:admin"
TOKENS = "custom:commonage:tokens"

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See your own workloads, what is free, and your usage."},
    SUBMIT: {"description": "Start, change and stop your own workloads.", "subscopes": [READ]},
    ADMIN: {"description": "See and stop everybody's workloads, and manage the machines.", "subscopes": [SUBMIT]},
    TOKENS: {"description": "Make tokens of your own that may do no more and last no longer than this one."},
}

_REACH_PORTAL = f"access:services!service={SERVICE_NAME}"

# What everybody who can sign in may do, and what is added to JupyterHub's own admin role.
USER_SCOPES = ["self", _REACH_PORTAL, SUBMIT, READ, TOKENS]
ADMIN_SCOPES = [ADMIN, SUBMIT, READ]

# What the portal gets to know of a user who signs in to it. Without TOKENS: a stolen sign-in is not to outlive itself.
PORTAL_SCOPES = [_REACH_PORTAL, ADMIN, SUBMIT, READ]

# What the token inside a session may do: the two things every session does, and work with its owner's
# workloads. Without TOKENS: it is to end with the session.
SESSION_SCOPES = ["users:activity!user", "access:servers!server", SUBMIT, READ]
