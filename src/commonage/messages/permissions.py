"""Texts about permissions and roles: for refusals, and for the page of the reference (`scripts/docs.py`)."""

from __future__ import annotations

from commonage.domain.permissions import OWN, PERMISSIONS, Permission, Role
from commonage.domain.reasons import refusals as r
from commonage.messages.template import Say, Texts

_P = Permission

# Each completes "a user who has it may …".
ACTIONS = {
    _P.SEE_TENANT: "see the tenant: quota, totals of usage, reservations, volumes, images, and the nodes of its sites "
    "with the allocations of its members",
    _P.SUBMIT: "submit workloads and upload files that are charged to the tenant, and push images under its name",
    _P.SEE_WORKLOADS: "see everybody's workloads: owner, state, request, node, usage, metrics, events and explanation",
    _P.READ_OUTPUT: "read the output, the command and the variables of everybody's workloads",
    _P.STOP_WORKLOADS: "stop everybody's workloads, and suspend, resume and remove everybody's cron jobs",
    _P.ENTER_WORKLOADS: (
        "run commands in everybody's workloads, open everybody's sessions in the browser, and trigger everybody's cron "
        "jobs"
    ),
    _P.MANAGE_ENVIRONMENTS: "build and remove environments",
    _P.TEACH: "teach: create, change and remove classes, see the seat of each student, and write to all of them",
    _P.MANAGE_IMAGES: "replace, pull in advance and remove everybody's images",
    _P.WRITE_VOLUMES: "write to volumes whose writers are managers, in workloads and on the page Data",
    _P.MANAGE_MATERIALS: "sync materials of the tenant, and see and change their credentials",
    _P.SEE_PLATFORM: "see nodes, sites, resources, users, homes, metrics and events of the whole platform",
    _P.DRAIN_NODES: "drain and resume nodes, and clear remembered faults",
    _P.SUBMIT_FOR_OTHERS: "submit workloads for another user",
    _P.RAISE_PRIORITY: "use priorities above the highest that is open to all",
    _P.RESERVE: "make and cancel reservations",
    _P.PUBLISH_IMAGES: "register images for everybody, and images of other registries",
    _P.MANAGE_PLATFORM: "manage nodes, sites, resources, users and tenants, and clean the registry",
    _P.ISSUE_TOKENS: "create tokens for another user",
}

ROLES = {
    Role.VIEWER: "Follows a tenant, for example its sponsor.",
    Role.MEMBER: "Works in a tenant. All users in the JupyterHub group of the tenant's name have it there, and all "
    "users have it in the default tenant.",
    Role.TEACHER: "Leads a course: helps its members in their workloads.",
    Role.MANAGER: "Is responsible for a tenant.",
    Role.OPERATOR: "Keeps the platform running.",
    Role.ADMIN: "Manages the platform. All admins of JupyterHub have it.",
}


def _missing(reason: r.PermissionMissing, _say: Say) -> str:
    where = f" in tenant {reason.tenant}" if reason.tenant else ""
    action = next((text for one, text in ACTIONS.items() if one == reason.permission), reason.permission)
    of_admin = "" if reason.tenant else " If you are an admin, use a token with admin rights."
    return (
        f"Permission denied: {reason.user} may not {action.partition(':')[0]}{where}. Roles that permit it: "
        f"{', '.join(reason.roles)}. "
        f"Ask an admin for one of them.{of_admin}"
    )


TEXTS: Texts = {r.PermissionMissing: _missing}


def reference() -> str:
    """The table of roles and permissions, in Markdown."""
    parts = [
        "# Roles and permissions",
        "",
        "A role is given to a user or to a group of JupyterHub, in one tenant or on the platform: see",
        "[give roles](../operate/roles.md). A role of the platform holds in every tenant. Several roles add up.",
        "The token of a request must have the scope of the permission as well; scopes are described in",
        "[sign-in](../operate/sign-in.md).",
        "",
        "## Roles",
        "",
        "| role | where | description |",
        "|---|---|---|",
        *(f"| `{role}` | {'platform' if role.of_platform else 'tenant'} | {ROLES[role]} |" for role in Role),
        "",
        "## Permissions",
        "",
        f"| permission | scope | {' | '.join(Role)} | the role may |",
        f"|---|---|{'---|' * len(Role)}---|",
        *map(_row, Permission),
        "",
        "## Without a role",
        "",
        "You may do the following with your own workloads, images and tokens in every tenant, also after you have "
        "left it:",
        "",
        "| permission | scope |",
        "|---|---|",
        *(f"| `{permission}` | `{scope}` |" for permission, scope in OWN.items()),
        "",
        "## What others see of you",
        "",
        "Users without `see-tenant` in your tenant see none of its names: neither users nor workloads, reservations,",
        "images or volumes. Where both use the same nodes, they see the total that other tenants use there and when",
        "the last of it ends, and of the queue the number of requests ahead. A request for something that a user may",
        "not see is answered exactly as if it did not exist.",
        "",
    ]
    return "\n".join(parts)


def _row(permission: Permission) -> str:
    marks = " | ".join("yes" if permission in PERMISSIONS[role] else "" for role in Role)
    return f"| `{permission}` | `{permission.scope}` | {marks} | {ACTIONS[permission]} |"
