"""All problem codes of the API with status, title and meaning: one table for `failures` and for the documentation.

`document` makes docs/reference/problems.md; a test keeps the table complete. The raiser of an error sets its code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commonage import messages
from commonage.api.fill import optional_reason
from commonage.domain import errors
from commonage.domain.reasons import Reason
from commonage.wire.reasons import Problem

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One problem code with its HTTP status and title; `meaning` is the text for the documentation."""

    code: str
    status: int
    title: str
    meaning: str


_TABLE: Mapping[int, Mapping[str, tuple[str, str]]] = {
    400: {
        "invalid-json": ("Invalid JSON", "The body is not JSON; `detail` gives the position of the error."),
        "invalid-encoding": ("Not UTF-8", "The body is not UTF-8, the only encoding of JSON."),
    },
    401: {
        "unauthenticated": ("Not authenticated", "The token is missing, unknown to the hub, or expired."),
    },
    403: {
        "forbidden": ("Not allowed", "The caller is known, but may not do this."),
        "scope-missing": ("Scope missing", "The token lacks a scope; `detail` names it."),
        "permission-missing": (
            "Permission missing",
            "None of the caller's roles permits it; `detail` names the roles that do.",
        ),
        "not-admin": ("For admins only", "Only admins may raise a priority, or act for another user."),
        "not-a-member": ("Not a member", "Only members of a tenant may submit workloads for it."),
        "volume-read-only": ("Read-only volume", "The volume can only be mounted read-only."),
        "not-yours": ("Owned by another user", "Only the user who registered it and admins may replace or remove it."),
        "name-retired": (
            "Retired name",
            "The user or tenant was renamed or removed, or this is in progress; an admin can release the name.",
        ),
        "consent-needed": (
            "Consent needed",
            "A session of a class is entered only with the consent of its student, for the meeting that is on.",
        ),
        "sessions-share-origin": (
            "Sessions share an origin",
            "Sessions of others cannot be opened while sessions have no host names of their own.",
        ),
        "reserved-name": ("Reserved name", "Commonage itself uses this user name; an admin must rename the user."),
    },
    404: {
        "not-found": ("Not found", "The path does not exist."),
        "workload-not-found": ("No such workload", "No workload has this id, or you may not see it."),
        "log-not-found": ("No log", "The workload has not started yet, or its log is deleted."),
        "node-not-found": ("No such node", "No node has this name; `detail` lists the nodes."),
        "site-not-found": ("No such site", "No site elsewhere has this name; `detail` lists the sites."),
        "device-not-found": ("No such GPU", "The node has no such GPU; `detail` lists its GPUs."),
        "tenant-not-found": ("No such tenant", "No tenant has this name, or you are not a member of it."),
        "cron-job-not-found": ("No such cron job", "No cron job has this id, or you may not see it."),
        "class-not-found": ("No such class", "No class has this name, or you may not see it."),
        "student-not-found": ("Not on the roster", "The class has no student of this name."),
        "consent-not-asked": ("Not asked", "This user has not asked to open your session in the meeting."),
        "reservation-not-found": ("No such reservation", "No reservation has this id, or it is over."),
        "environment-not-found": (
            "No such environment",
            "The catalogue has no environment of this name that you may see; `detail` lists some.",
        ),
        "image-not-found": ("No such image", "The catalogue has no image of this name that you may see."),
        "file-not-found": ("No such file", "The home or volume has no file or folder of this path."),
        "volume-not-found": ("No such volume", "No volume of this name is open to you; `detail` lists the volumes."),
        "user-not-found": ("No such user", "The hub has no user of this name."),
        "offboarding-not-found": ("No such renaming or removal", "No renaming or removal has this id."),
        "material-not-found": ("No such material", "No material has this name, or you may not see it."),
        "kind-not-found": ("No such kind", "No kind of resource has this name; `detail` lists the kinds."),
        "resource-not-found": ("No such resource", "No resource of this kind has this name."),
        "registry-not-found": ("No registry", "This installation runs no image registry."),
        "bundle-not-found": (
            "No such bundle",
            "You uploaded no bundle with this digest, or it was deleted because no workload used it; upload it again.",
        ),
    },
    405: {
        "method-not-allowed": (
            "Method not allowed",
            "The path exists, but not with this method; the header `Allow` lists its methods.",
        ),
    },
    409: {
        "conflict": ("Conflict", "The request conflicts with the current state of the resource."),
        "no-builder": ("No builder", "The site's engine has no environment in which environments are built."),
        "not-running": ("Not running", "This is only possible with a running workload."),
        "extension-refused": (
            "Cannot be extended",
            "Quota, maximum age or a reservation allow no more time, or the workload has no limit.",
        ),
        "no-gpu": ("No GPU to release", "The workload is no session, holds no GPU, or cannot run without one."),
        "file-exists": ("File exists", "A file or folder of this name exists; choose another name, or replace it."),
        "files-not-here": (
            "Files at another site",
            "Only files on the machine of the control plane can be listed and changed.",
        ),
        "storage-full": ("Storage full", "The disk, a quota or a limit is full; delete files that are not needed."),
        "upload-busy": ("Upload in progress", "Another request sends to the same upload."),
        "upload-offset": ("Wrong offset", "The upload has another size; get its offset, and continue from there."),
        "already-ended": ("Already ended", "The workload has ended and cannot be stopped."),
        "cron-job-exists": (
            "Cron job exists",
            "The owner has a cron job of this name; remove it first, or give the new one another name.",
        ),
        "key-taken": ("Key in use", "Another workload of this owner has the key."),
        "key-reused": ("Key already used", "The key created a different workload before; use a new one."),
        "dependency-broken": (
            "Dependency can never be met",
            "The workload that it depends on has ended in a way that never meets the condition.",
        ),
        "node-in-use": (
            "Node in use",
            "A node can be removed when it is lost, or drained and empty; `detail` lists its workloads.",
        ),
        "reservation-of-class": (
            "Reservation of a class",
            "The reservation follows the times of its class; change or remove the class.",
        ),
        "no-meeting": ("No meeting now", "The class has no meeting at present."),
        "reservation-conflict": (
            "Not enough room for the reservation",
            "The nodes cannot provide it in addition to the existing reservations; `detail` has the numbers.",
        ),
        "version-mismatch": (
            "Version does not match",
            "The resource has another version than `If-Match`, or resources changed since the plan; read again.",
        ),
        "managed-elsewhere": (
            "Managed by another source",
            "A git repository declares the resource; change it there. `detail` names it.",
        ),
        "plan-obstructed": (
            "Plan with obstacles",
            "The plan of a renaming or removal has obstacles; `detail` has the first, the plan has all.",
        ),
        "name-not-released": (
            "Name not released",
            "A user or tenant of this name was renamed or removed; release the name before it is used again.",
        ),
        "offboarding-pending": (
            "Renaming or removal not done",
            "The user or tenant is being renamed or removed; wait until that is done.",
        ),
        "site-would-open": (
            "Site would be open to all tenants",
            "The resource restricts a site that has joined; remove the site first, or set its tenants to [].",
        ),
        "material-without-version": ("No version yet", "The repository of the material has not been read yet."),
        "tenant-not-empty": (
            "Tenant not empty",
            "The tenant has work, folders or members; remove it by an offboarding (`POST /offboardings`).",
        ),
        "resource-in-use": ("Resource in use", "Live workloads use the resource; `detail` lists them."),
        "stale-version": ("Changed meanwhile", "Another request changed it meanwhile; read it again and repeat."),
    },
    413: {
        "too-large": (
            "Too large",
            "The limit of a body is 1 MiB (of a bundle `max_bundle`), of a command 128 KiB, of variables and secrets "
            "together 128 KiB, of the secrets of an array 64 MiB for all its members.",
        ),
    },
    416: {
        "range-invalid": ("Range invalid", "The header `Range` names bytes behind the end of the file."),
    },
    415: {
        "unsupported-media-type": (
            "Wrong content type",
            "The content type of the body is not `application/json` (for bundles: `application/gzip`).",
        ),
    },
    422: {
        "invalid-input": ("Invalid value", "A value is invalid in itself, independent of the nodes; `field` names it."),
        "unknown-field": ("Unknown field", "A field or parameter does not exist; check its spelling."),
        "invalid-parameter": ("Invalid parameter", "A query parameter or header is invalid; `field` names it."),
        "invalid-path": ("Invalid path", "The path has `..`, is too long, or leads to a link or a special file."),
        "which-tenant": ("Tenant missing", "Each tenant has its own files in the volume; `detail` lists the tenants."),
        "upload-mismatch": (
            "Upload does not match",
            "Offset, length and content do not match; send the file again from the start.",
        ),
        "invalid-cursor": ("Invalid cursor", "The cursor does not come from this list."),
        "invalid-by": ("Invalid grouping", "Usage is summed by owner, tenant, workload or environment."),
        "invalid-memory": (
            "Invalid amount of memory",
            "Memory is above zero and at most a pebibyte: a number of MiB in JSON, text like `6GiB` elsewhere.",
        ),
        "invalid-cpus": ("Invalid number of CPUs", "Write CPUs as `2`, `0.5` or `1500m`, above zero."),
        "invalid-gpus": (
            "Invalid GPU request",
            "Write `2` (GPUs), `0.25` or `1/3` (of one), `6GiB` (VRAM), `A100:6GiB` (of a model).",
        ),
        "invalid-time": (
            "Invalid duration",
            "A duration is at most 366 days: a number of seconds in JSON, text with a unit elsewhere, like `30m`, "
            "`1h30m`, `2d` or `01:30:00`.",
        ),
        "invalid-name": ("Invalid name", "A name has at most 128 characters and no control characters."),
        "invalid-command": (
            "Invalid command",
            "A job or service needs a command: a list of arguments, the program first.",
        ),
        "invalid-array": ("Invalid array", "Only jobs can be arrays, of 1 to 10,000 members."),
        "invalid-bundle": (
            "Invalid bundle",
            "Upload files as a tar.gz archive, and refer to them by the returned digest.",
        ),
        "unknown-environment": (
            "No such environment",
            "The catalogue has no such entry, or it is not available for this kind of workload or tenant.",
        ),
        "invalid-build": (
            "Invalid build",
            "The environment cannot be built from this: `detail` names what is wrong with its name or its source.",
        ),
        "invalid-image": (
            "Invalid image",
            "An image is named `TENANT/NAME` or `TENANT/NAME:TAG`, and its reference contains a digest.",
        ),
        "needs-gpu": ("GPU required", "The environment requires a GPU, or more VRAM than requested."),
        "unknown-kind": ("Unknown kind", "A document has no kind, or one that does not exist."),
        "unknown-reference": (
            "Unknown reference",
            "A resource names another one that does not exist, or that the change deletes.",
        ),
        "unknown-tenant": ("No such tenant", "The settings have no tenant of this name; `detail` lists the tenants."),
        "invalid-calendar": (
            "Invalid calendar file",
            "The .ics file has no meetings that can be used; `detail` says why.",
        ),
        "invalid-schedule": (
            "Invalid schedule",
            "The cron expression or time zone is invalid, or the workload cannot repeat; `field` names which.",
        ),
        "unknown-priority": (
            "No such priority class",
            "This is neither a number nor the name of a priority class; `detail` lists the classes.",
        ),
        "invalid-label": (
            "Invalid label",
            "A label is `NAME=VALUE`: the name has letters, digits and `. _ / -`, the value plain characters.",
        ),
        "invalid-volume": (
            "Invalid volume",
            "A volume is `NAME`, `NAME:ro` or `NAME:rw`, optionally with `@/path`; each volume once, and no mount "
            "path within another.",
        ),
        "unknown-file": ("No such file", "The material has no file of this path."),
        "unknown-volume": ("No such volume", "No volume of this name is open to you; `detail` lists the volumes."),
        "volume-at-no-site": (
            "Volume at no site",
            "No site that was requested and that the tenant may use has the volume.",
        ),
        "unknown-site": ("No such site", "No site of this name has nodes for the tenant; `detail` lists the sites."),
        "unknown-dependency": ("No such dependency", "A workload that it depends on does not exist."),
        "unschedulable": (
            "Unschedulable",
            "No node could ever run it, even with all of its resources free.",
        ),
    },
    426: {
        "upgrade-required": ("WebSocket required", "The path needs a WebSocket, but the request was plain HTTP."),
    },
    429: {
        "too-many-requests": (
            "Too many requests",
            "A user, or an address with invalid tokens, sends too many requests; `Retry-After` says when to continue.",
        ),
        "too-many-workloads": (
            "Too many workloads",
            "The user, the tenant or the installation is at its limit of live workloads; `detail` has the numbers.",
        ),
        "storage-quota-exceeded": (
            "Storage quota exceeded",
            "Files of the user or tenant take more than the tenant's quota of storage; sessions still start.",
        ),
        "too-many-streams": (
            "Too many streams",
            "The user or the installation is at its limit of open event streams and followed logs.",
        ),
        "too-many-commands": (
            "Too many commands",
            "The user or the installation is at its limit of commands in workloads.",
        ),
        "too-many-cron-jobs": (
            "Too many cron jobs",
            "The owner is at the limit of cron jobs; `detail` has the numbers.",
        ),
        "too-many-bundles": (
            "Too many bundles",
            "The user or the tenant is at its limit of stored bundles, in number or size; `detail` has the numbers.",
        ),
        "too-many-uploads": (
            "Too many uploads",
            "The user or the installation is at its limit of concurrent uploads.",
        ),
    },
    500: {
        "internal": ("Internal error", "The server failed. Its log has the details under the id in `detail`."),
    },
    503: {
        "unavailable": ("Unavailable", "The hub, the database or a site does not answer now; try again."),
        "devices-unavailable": ("GPUs unavailable", "The driver of the GPUs does not answer now."),
        "engine-failure": ("Engine failure", "The engine refused or failed; `detail` has its message."),
        "share-not-enforced": (
            "GPU share not enforced",
            "The isolation level of a GPU share cannot be enforced; `detail` has the driver's answer.",
        ),
    },
}
PROBLEMS: Mapping[str, ProblemKind] = {
    code: ProblemKind(code, status, title, meaning)
    for status, kinds in _TABLE.items()
    for code, (title, meaning) in kinds.items()
}


def problem_of(error: errors.CommonageError) -> Problem:
    """The problem document of this error. An engine's own message goes to the log, not into the document."""
    if isinstance(error, errors.EngineFailure) and error.native:
        log.warning("%s", error)
    kind = PROBLEMS.get(error.problem_code) or _kind_by_class(error)
    return problem(
        kind,
        messages.of_error(error),
        field=error.field if isinstance(error, errors.InvalidInput) else None,
        retryable=error.is_retryable,
        reason=error.reason,
    )


def _kind_by_class(error: errors.CommonageError) -> ProblemKind:
    """The kind of a code that the table lacks, from the class of the error."""
    return ProblemKind(error.problem_code, error.status, error.problem_code.replace("-", " ").capitalize(), "")


def problem(
    kind: ProblemKind,
    detail: str,
    *,
    field: str | None = None,
    retryable: bool = False,
    reason: Reason | None = None,
    errors: Sequence[Mapping[str, Any]] = (),
) -> Problem:
    """A problem document. It contains `errors` only if there are several."""
    return Problem(
        type=f"urn:commonage:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        code=kind.code,
        field=field,
        retryable=retryable,
        reason=optional_reason(reason),
        errors=[dict(one) for one in errors] if len(errors) > 1 else None,
    )


def document() -> str:
    rows = [f"| `{kind.code}` | {kind.status} | {kind.title} | {kind.meaning} |" for kind in PROBLEMS.values()]
    return "\n".join(
        [
            "# Problem codes",
            "",
            "Every error response is a problem document (RFC 9457, `application/problem+json`). `code` is stable and",
            "meant for programs. `detail` is meant for people: what happened, why, and what to do next. `field` is the",
            "path of the invalid field; `errors` lists all invalid fields if there are several. `retryable` says",
            "whether the same request may succeed later.",
            "",
            "| `code` | status | title | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
