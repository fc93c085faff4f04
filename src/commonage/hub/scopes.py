"""The permissions of a token at the control plane: one table, from which roles, the session's token and the docs are
made.

The names are `commonage.domain.principals.Scope`; a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commonage.wire.hub import SERVICE_NAME

READ = "custom:commonage:read"
SUBMIT = "custom:commonage:submit"
MANAGE = "custom:commonage:manage"
ADMIN = "custom:commonage:admin"
TOKENS = "custom:commonage:tokens"

SCOPES: dict[str, dict[str, Any]] = {
    READ: {"description": "See your own workloads, what is free, and your usage."},
    SUBMIT: {"description": "Start, change and stop your own workloads.", "subscopes": [READ]},
    MANAGE: {
        "description": "Use your roles: stop and enter workloads of others, drain nodes.",
        "subscopes": [SUBMIT],
    },
    ADMIN: {"description": "See and stop everybody's workloads, and manage the nodes.", "subscopes": [MANAGE]},
    TOKENS: {"description": "Create tokens of your own that have no more scopes and expire no later than this one."},
}

_REACH_PORTAL = f"access:services!service={SERVICE_NAME}"

# Scopes of every user, and those added to JupyterHub's own admin role.
USER_SCOPES = ["self", _REACH_PORTAL, MANAGE, SUBMIT, READ, TOKENS]
ADMIN_SCOPES = [ADMIN, MANAGE, SUBMIT, READ]

_ALL_SESSIONS, _SHARING = "access:servers", "shares"
# The control plane lets a user into a session of another, by a share of the hub. A share needs its scope in the hands
# of the one who makes it.
VISITS_ROLE = {
    "name": "commonage-visits",
    "description": "Lets the control plane admit users to sessions of others, as their roles permit.",
    "scopes": [_ALL_SESSIONS, _SHARING],
    "services": [SERVICE_NAME],
}


def of_admins(given: Sequence[str]) -> list[str]:
    """The scopes of admins, from JupyterHub's own: they too enter and share sessions by the control plane only."""
    return [*(one for one in given if one not in (_ALL_SESSIONS, _SHARING)), *ADMIN_SCOPES]


# Scopes of the portal's token of a signed-in user. Without TOKENS: a stolen sign-in must not outlive itself.
PORTAL_SCOPES = [_REACH_PORTAL, ADMIN, MANAGE, SUBMIT, READ]

# Scopes of the token inside a session: the two that every session needs, and access to its owner's
# workloads. Without TOKENS: it must end with the session. Without MANAGE: code in the session, which may come from
# others, must not use its owner's roles.
SESSION_SCOPES = ["users:activity!user", "access:servers!server", SUBMIT, READ]
