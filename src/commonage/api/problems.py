"""Every problem the API may answer with: its code, its status, its title, what it means. One table for code and docs.

`failures` looks a problem up here when it answers; `document` makes docs/reference/problems.md, and a test keeps the
table complete. Which error carries which code is decided where it is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commonage import messages
from commonage.api import encode_reasons
from commonage.domain import errors
from commonage.domain.reasons import Reason
from commonage.wire.workloads import Problem

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One code. `status` is HTTP's, `title` the same for all of its kind, `meaning` for the reference."""

    code: str
    status: int
    title: str
    meaning: str


_TABLE: Mapping[int, Mapping[str, tuple[str, str]]] = {
    400: {
        "invalid-json": ("Not JSON", "The body is not JSON; the sentence says where it goes wrong."),
        "invalid-encoding": ("Not UTF-8", "The body is not UTF-8, the only encoding of JSON."),
    },
    401: {
        "unauthenticated": ("Who are you?", "No token, or one that the hub does not know (any more)."),
    },
    403: {
        "forbidden": ("Not allowed", "Known, but not allowed to do this."),
        "scope-missing": ("The token does not allow it", "The token lacks a scope; the sentence names it."),
        "not-admin": ("For admins only", "Only admins may raise a priority, or act for somebody else."),
        "not-a-member": ("Not a member", "Work can only be submitted for a tenant one belongs to."),
        "volume-read-only": ("Read-only", "The volume may be had, but nobody may write to it."),
        "not-yours": ("Not yours", "What somebody else registered, only they and admins may replace or remove."),
        "reserved-name": (
            "Reserved name",
            "The user's name is one that Commonage itself uses; have an admin rename the user.",
        ),
    },
    404: {
        "not-found": ("No such thing", "The address leads nowhere."),
        "workload-not-found": ("No such workload", "There is none with this id, or it is not yours to see."),
        "log-not-found": ("No log", "It has not started yet, or its log is gone."),
        "node-not-found": ("No such node", "The sentence names those there are."),
        "device-not-found": ("No such GPU", "The sentence names those the node has."),
        "tenant-not-found": ("No such tenant", "There is none of this name, or you are no member of it."),
        "reservation-not-found": ("No such reservation", "There is none of this id, or it is over."),
        "image-not-found": ("No such image", "The catalogue has none of this name that you may see."),
        "user-not-found": ("No such user", "The hub knows nobody of this name."),
        "registry-not-found": ("No registry", "This installation runs no registry of images."),
        "bundle-not-found": (
            "No such bundle",
            "You sent no files of this digest, or they were removed as no workload needed them; send them again.",
        ),
    },
    405: {
        "method-not-allowed": (
            "Cannot be done here",
            "The address exists but not for this method; `Allow` names those it has.",
        ),
    },
    409: {
        "conflict": ("That does not go", "What is there does not allow it."),
        "not-running": ("Not running", "A command can be run beside a workload only while that runs."),
        "already-ended": ("Already ended", "The workload has ended and cannot be stopped any more."),
        "key-taken": ("Key in use", "Another workload of this owner has the key."),
        "key-reused": ("Key used for something else", "The key made a different workload before; use a new one."),
        "dependency-broken": (
            "Would wait for ever",
            "What it should wait for has ended in a way that never meets the condition.",
        ),
        "node-in-use": (
            "Node in use",
            "A node is removed when it is lost, or drained and empty; the sentence says what runs there.",
        ),
        "reservation-conflict": (
            "It cannot be kept",
            "The nodes have no room for it beside the reservations made before; the sentence has the numbers.",
        ),
        "stale-version": ("Somebody else was first", "It was changed meanwhile; read it again and repeat."),
    },
    413: {
        "too-large": ("Too large", "A body is limited to 1 MiB (a bundle to `max_bundle`), a command to 128 KiB."),
    },
    415: {
        "unsupported-media-type": (
            "Not JSON",
            "The body is not sent as `application/json` (bundles: `application/gzip`).",
        ),
    },
    422: {
        "invalid-input": (
            "That cannot be right",
            "A value cannot be right, whatever the nodes look like; `field` names it.",
        ),
        "unknown-field": ("Unknown field", "A field or parameter that does not exist; perhaps misspelt."),
        "invalid-parameter": (
            "Parameter out of bounds",
            "A query parameter or header cannot be right; `field` names it.",
        ),
        "invalid-cursor": ("Not a cursor", "The cursor is not one that this list gave."),
        "invalid-by": ("Cannot be summed so", "Usage is summed by owner, tenant, workload or environment."),
        "invalid-memory": (
            "Not an amount of memory",
            "Memory is above zero and at most a pebibyte: a number of MiB in JSON, text like `6GiB` elsewhere.",
        ),
        "invalid-cpus": (
            "Not a number of cores",
            "Cores are written like `2`, `0.5` or `1500m`, and are more than nothing.",
        ),
        "invalid-gpus": (
            "Not a share of a GPU",
            "Write `2` (GPUs), `0.25` or `1/3` (of one), `6GiB` (VRAM), `A100:6GiB` (of a model).",
        ),
        "invalid-time": (
            "Not a duration",
            "A duration is at most 366 days: a number of seconds in JSON, text with a unit elsewhere, like `30m`, "
            "`1h30m`, `2d` or `01:30:00`.",
        ),
        "invalid-name": ("Not a name", "A name has at most 128 characters, none of them a control character."),
        "invalid-command": (
            "Not a command",
            "A job or service needs a command: a list of arguments, the program first.",
        ),
        "invalid-array": ("Not an array", "Only jobs come as arrays, of 1 to 10,000."),
        "invalid-bundle": (
            "Not a bundle",
            "Files are sent as a tar.gz archive, and named by the digest that came back.",
        ),
        "unknown-environment": (
            "No such environment",
            "The catalogue has no such entry (any more), or it is not offered for this kind of workload or tenant.",
        ),
        "invalid-image": (
            "Not an image",
            "An image is called `TENANT/NAME` or `TENANT/NAME:TAG`, and a digest says which one it is.",
        ),
        "needs-gpu": (
            "It needs a GPU",
            "What this environment has in it does not run without a GPU, or with so little.",
        ),
        "unknown-tenant": ("No such tenant", "The settings declare no tenant of this name; the sentence lists those."),
        "unknown-priority": (
            "No such priority class",
            "Neither a number nor the name of a priority class; the sentence lists those there are.",
        ),
        "invalid-label": (
            "Not a label",
            "A label is `NAME=VALUE`: the name of letters, digits and `. _ / -`, the value of plain characters.",
        ),
        "invalid-volume": (
            "Not a volume",
            "A volume is `NAME`, `NAME:ro` or `NAME:rw`, with `@/path` behind; each once, none within another.",
        ),
        "unknown-volume": ("No such volume", "The settings declare no volume of this name; the sentence lists those."),
        "unknown-dependency": ("Waits for nothing", "A workload it should wait for does not exist."),
        "unschedulable": (
            "No node could ever run it",
            "Even with everything free, no node here has what was asked.",
        ),
    },
    426: {
        "upgrade-required": ("By a WebSocket", "It is a WebSocket, and was asked for by plain HTTP."),
    },
    429: {
        "too-many-requests": (
            "Too many requests",
            "A user, or an address with tokens that are not valid, asks too often; `Retry-After` says when to go on.",
        ),
        "too-many-workloads": (
            "Too many workloads",
            "The user, the tenant or all together have as many live workloads as are allowed; the sentence has both.",
        ),
        "too-many-streams": (
            "Too many streams",
            "The user or all together have as many event streams and followed logs open as are allowed.",
        ),
        "too-many-commands": (
            "Too many commands",
            "The user or all together run as many commands beside workloads as are allowed.",
        ),
        "too-many-bundles": (
            "Too many bundles",
            "The user or the tenant keeps as many bundles, or as large ones in all, as are allowed; the sentence says "
            "how many.",
        ),
        "too-many-uploads": (
            "Too many uploads",
            "The user or all together send as many bundles at the same time as are allowed.",
        ),
    },
    500: {
        "internal": ("Something broke", "A fault of ours. The `id` in the sentence stands in the server's log, too."),
    },
    503: {
        "unavailable": ("A part does not answer", "The hub, the database or a site does not answer now; try again."),
        "devices-unavailable": ("The GPUs do not answer", "The driver of the GPUs does not answer now."),
        "engine-failure": ("The node would not", "An engine refused or failed; the sentence is its own."),
        "not-confined": (
            "The share would not hold",
            "A share of a GPU cannot be held at its level of isolation; the sentence has the driver's answer.",
        ),
    },
}
PROBLEMS: Mapping[str, ProblemKind] = {
    code: ProblemKind(code, status, title, meaning)
    for status, kinds in _TABLE.items()
    for code, (title, meaning) in kinds.items()
}


def problem_of(error: errors.CommonageError) -> Problem:
    """The problem document of one of our errors. The log gets the engine's own text, which the document leaves out."""
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
    """For a code that the table lacks: what its class says."""
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
    """A problem document. `errors` only where there are several culprits."""
    return Problem(
        type=f"urn:commonage:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        code=kind.code,
        field=field,
        retryable=retryable,
        reason=None if reason is None else encode_reasons.reason(reason),
        errors=[dict(one) for one in errors] if len(errors) > 1 else None,
    )


def document() -> str:
    """The page of the reference about problems, in Markdown."""
    rows = [f"| `{kind.code}` | {kind.status} | {kind.title} | {kind.meaning} |" for kind in PROBLEMS.values()]
    return "\n".join(
        [
            "# Problem codes",
            "",
            "An answer that is no success is a problem document (RFC 9457, `application/problem+json`). Its `code` is",
            "stable and made for programs; `detail` is a sentence for people that says what was asked, what is there,",
            "and what to do next. `field` names the culprit, dotted; `errors` lists all of them where there are",
            "several. `retryable` says that the same call may succeed later.",
            "",
            "| `code` | status | title | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
