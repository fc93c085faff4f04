"""A parsed submission and its conversion to a spec: fills in defaults, checks bounds, rejects unknown values.

`Advice` suggests a resource request from earlier runs of the same work, for the API and the portal's forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from commonage import tracing
from commonage.control.access import Access, access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.settings import ControlSettings
from commonage.control.tenants import may_use, tenant_of
from commonage.control.usage.usage_reports import UsageReports
from commonage.domain.builds import BUILDER
from commonage.domain.errors import Forbidden, InvalidInput, TooLarge
from commonage.domain.images import Environment
from commonage.domain.permissions import Permission
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.domain.reasons.refusals import EnvironmentNotOffered, TimeLimitBeyondMaxAge
from commonage.domain.requests import GpuRequest, Request, format_memory
from commonage.domain.tenants import Tenant
from commonage.domain.usage import Suggestion, suggestion_of
from commonage.domain.volumes import VolumeRequest, allowed, volume_near
from commonage.domain.workloads import Dependency, Kind, RetryPolicy, Spec, is_notebook, name_of_command

Variables = tuple[tuple[str, str], ...]
MAX_TOGETHER = 1024
DEFAULT_GRACE_S = 10
DEFAULT_HEALTH_INTERVAL_S = 10
MAX_ENVIRONMENT = 128 * 1024
"""Bytes of all variables and secrets together, names and values: as much as Linux allows a single one to have."""
MAX_ARRAY_SECRETS = 64 * 1024 * 1024
"""Bytes of the secrets of an array together. Each member keeps its own copy, until it ends."""
_HEALTH_PATH = re.compile(r"/[!-~]{0,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Submission:
    """A user's request to run something, not yet admitted. None stands for the installation's default.

    `priority` is a number or the name of a class. `groups` are the owner's; only the hub's spawner sets them, as it
    submits for other users.
    """

    kind: Kind
    command: tuple[str, ...] = ()
    name: str | None = None
    environment: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    gpu: GpuRequest | None = None
    variables: Variables = ()
    secrets: Variables = ()
    labels: Variables = ()
    one_numa: bool = False
    priority: int | str = 0
    preemptible: bool | None = None
    requeue: bool | None = None
    time_limit_s: int | None = None
    grace_s: int = DEFAULT_GRACE_S
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    depends_on: tuple[Dependency, ...] = ()
    array_size: int = 0
    gang: bool = False
    bundle: str | None = None
    volumes: tuple[VolumeRequest, ...] = ()
    port: int | None = None
    health_path: str = ""
    health_interval_s: int | None = None
    near: str | None = None
    tenant: str | None = None
    key: str | None = None
    owner: str | None = None
    groups: tuple[str, ...] | None = None
    class_meeting: str = ""


def spec_of(submission: Submission, principal: Principal, catalogue: Catalogue, settings: ControlSettings) -> Spec:
    owner = _owner(submission, access_of(principal, settings))
    tenant = _tenant(submission, principal, owner, catalogue, settings)
    environment = _environment(submission, tenant, catalogue, settings)
    _check_gpu(submission, environment)
    priority, preemptible = _priority(submission, principal, settings)
    _check_service(submission)
    _check_variables(submission)
    return Spec(
        kind=submission.kind,
        name=_name(submission, settings),
        owner=owner,
        tenant=tenant.name,
        environment=environment.name,
        command=_command(submission),
        request=_request(submission, settings),
        variables=submission.variables,
        secrets=submission.secrets,
        priority=priority,
        time_limit_s=_time_limit(submission, tenant, environment, settings),
        grace_s=submission.grace_s,
        retry=submission.retry,
        depends_on=tuple(dict.fromkeys(submission.depends_on)),
        bundle=submission.bundle,
        array_size=_array_size(submission, settings),
        key=submission.key,
        preemptible=preemptible if submission.preemptible is None else submission.preemptible,
        gang=submission.gang,
        requeue=submission.kind is not Kind.SESSION if submission.requeue is None else submission.requeue,
        volumes=allowed(
            _mountable(submission.volumes, settings),
            settings.volumes,
            tenant.name,
            manages=_writes_volumes(submission, principal, owner, tenant, settings),
        ),
        near=volume_near(submission.near, settings.volumes, tenant.name) if submission.near else "",
        port=submission.port,
        health_path=submission.health_path,
        health_interval_s=submission.health_interval_s or DEFAULT_HEALTH_INTERVAL_S,
        traceparent=tracing.current(),
        class_meeting=_class_meeting(submission, tenant, access_of(principal, settings), settings),
    )


def _mountable(requested: Sequence[VolumeRequest], settings: ControlSettings) -> Sequence[VolumeRequest]:
    """The requests. Raises InvalidInput for a material where workloads cannot mount it, such as in a cluster."""
    materials = {one.name for one in settings.volumes if one.material is not None and not settings.materials_mounted}
    if found := next((one.name for one in requested if one.name in materials), None):
        raise InvalidInput(
            f"the material {found} cannot be mounted at this site; use the copy in ~/materials/{found}, and leave the "
            "volume out",
            field="volumes",
            code="invalid-volume",
        )
    return requested


def _class_meeting(submission: Submission, tenant: Tenant, access: Access, settings: ControlSettings) -> str:
    """From the platform itself through its hub; without it, that of the class whose name the session has."""
    if submission.kind is not Kind.SESSION:
        return ""
    if submission.class_meeting and access.may(Permission.SUBMIT_FOR_OTHERS):
        return submission.class_meeting
    one = settings.classes.get(submission.name or "")
    return f"{one.name}@" if one is not None and one.tenant == tenant.name else ""


def _check_service(submission: Submission) -> None:
    """Raise InvalidInput for a port or health check that is out of bounds, or of something else than a service."""
    port, path, interval_s = submission.port, submission.health_path, submission.health_interval_s
    given = {"port": port, "health_path": path or None, "health_interval_s": interval_s}
    field = next((name for name, value in given.items() if value is not None), None)
    if submission.kind is not Kind.SERVICE:
        if field is not None:
            raise InvalidInput(
                f"a {submission.kind} has no port and no health check; submit a service, as with "
                "`commonage run --service`",
                field=field,
            )
        return
    if port is not None and not 1 <= port <= 65535:
        raise InvalidInput(f"the port must be from 1 to 65535, not {port}", field="port")
    if path and not _HEALTH_PATH.fullmatch(path):
        raise InvalidInput(
            f"{path[:60]!r} is not the path of a health check; write it like /health", field="health_path"
        )
    if interval_s is not None and not 1 <= interval_s <= 3600:
        raise InvalidInput(
            f"the interval of health checks must be from 1 second to 1 hour, not {interval_s} s",
            field="health_interval_s",
        )


def _check_variables(submission: Submission) -> None:
    """Raise TooLarge for variables and secrets that fill memory and database, which keep them."""
    variables, secrets = _bytes_of(submission.variables), _bytes_of(submission.secrets)
    members = max(1, submission.array_size)
    if variables + secrets > MAX_ENVIRONMENT:
        raise TooLarge(
            f"variables and secrets have {-(-(variables + secrets) // 1024)} KiB together; at most "
            f"{MAX_ENVIRONMENT >> 10} KiB are allowed. Put large values into files, or into a volume.",
            field="secrets" if secrets > variables else "variables",
        )
    if secrets * members > MAX_ARRAY_SECRETS:
        raise TooLarge(
            f"the secrets have {-(-secrets // 1024)} KiB for each of {members} members; at most "
            f"{MAX_ARRAY_SECRETS >> 20} MiB are allowed for all members of an array together. Put large values into "
            "files or into a volume, or submit a smaller array.",
            field="secrets",
        )


def _bytes_of(variables: Variables) -> int:
    return sum(len(text.encode(errors="replace")) for pair in variables for text in pair)


def _tenant(
    submission: Submission, principal: Principal, owner: str, catalogue: Catalogue, settings: ControlSettings
) -> Tenant:
    """The tenant that is charged: the requested one; otherwise that of its image, if the owner is one of its members.

    The groups of the caller are known. The hub's spawner submits for other users and sends their groups; its own
    permissions do not count then.
    """
    access = access_of(principal, settings)
    of_owner = _access_of_owner(submission, principal, owner, settings)
    caller = access if submission.groups is None else of_owner
    name = submission.environment or ""
    found = catalogue.get(name) or catalogue.removed(name)
    own = found.tenant if found is not None else None
    if (
        submission.tenant is None
        and own is not None
        and (caller.may(Permission.SUBMIT) or own in [tenant.name for tenant in of_owner.own_tenants()])
    ):
        return tenant_of(own, of_owner, caller)
    return tenant_of(submission.tenant, of_owner, caller)


def _access_of_owner(submission: Submission, principal: Principal, owner: str, settings: ControlSettings) -> Access:
    groups = principal.groups if owner == principal.name else ()
    if submission.groups is not None and access_of(principal, settings).may(Permission.SUBMIT_FOR_OTHERS):
        groups = submission.groups
    owners = replace(principal, name=owner, groups=groups, scopes=principal.scopes - {Scope.ADMIN})
    return access_of(owners, settings)


def _writes_volumes(
    submission: Submission, principal: Principal, owner: str, tenant: Tenant, settings: ControlSettings
) -> bool:
    """Whether the owner may write to volumes of managers; the caller's own roles count only for the caller."""
    access = _access_of_owner(submission, principal, owner, settings)
    own = access_of(principal, settings) if owner == principal.name else access
    return own.may(Permission.WRITE_VOLUMES, tenant.name)


def _request(submission: Submission, settings: ControlSettings) -> Request:
    return Request(
        submission.cpus_milli or settings.default_cpus_milli,
        submission.memory_mib or settings.default_memory_mib,
        submission.gpu,
        submission.labels,
        submission.one_numa,
    )


def _environment(
    submission: Submission, tenant: Tenant, catalogue: Catalogue, settings: ControlSettings
) -> Environment:
    offered = [
        one
        for one in catalogue.values()
        if submission.kind in one.kinds and one.name != BUILDER and may_use(tenant, one)
    ]
    has_jupyter = submission.kind is Kind.SESSION or is_notebook(submission.kind, submission.command)
    default = settings.session_environment if has_jupyter else settings.job_environment
    if submission.environment is None and offered and default not in [one.name for one in offered]:
        return offered[0]  # this tenant may not use the default environment
    name = submission.environment or default
    found = catalogue.get(name)
    if found is None or found not in offered:
        there = tuple(sorted(one.name for one in offered))
        raise InvalidInput(
            _not_offered(name, submission.kind, tenant, catalogue, there),
            field="environment",
            code="unknown-environment",
        )
    return found


def _not_offered(
    name: str, kind: Kind, tenant: Tenant, catalogue: Catalogue, offered: tuple[str, ...]
) -> EnvironmentNotOffered:
    """Why the tenant cannot run this kind of workload in the environment. Reveals nothing about other tenants."""
    found, removed = catalogue.get(name), catalogue.removed(name)
    return EnvironmentNotOffered(
        environment=name if len(name) <= 60 else name[:57] + "...",
        kind=kind.value,
        tenant=tenant.name,
        exists=found is not None and found.tenant in (None, tenant.name),
        removed=catalogue.shortfall(name) if removed is not None and removed.tenant in (None, tenant.name) else None,
        offered=offered,
    )


def _check_gpu(submission: Submission, environment: Environment) -> None:
    """Raise InvalidInput if the environment does not support the requested GPU, or requires one that is missing."""
    least = environment.min_vram_mib
    if submission.gpu is None and (environment.needs_gpu or least):
        much = f" with {format_memory(least)} of VRAM" if least else ""
        example = f"{least}MiB" if least else "1"
        raise InvalidInput(
            f"{environment.name} needs a GPU{much}, and none was requested; request one, like `--gpus {example}`",
            field="gpus",
            code="needs-gpu",
        )
    if submission.gpu is not None and 0 < submission.gpu.vram_mib < least:
        raise InvalidInput(
            f"{environment.name} needs {format_memory(least)} of VRAM, and "
            f"{format_memory(submission.gpu.vram_mib)} was requested; request more, like `--gpus {least}MiB`",
            field="gpus",
            code="needs-gpu",
        )


def _owner(submission: Submission, access: Access) -> str:
    principal = access.principal
    if submission.owner in (None, principal.name) and principal.name == OPERATOR:
        raise InvalidInput(
            "the command line on the server's node has no workloads of its own; sign in as a user: "
            "`commonage token --user NAME --data-dir DIR | commonage login`",
            field="owner",
        )
    if submission.owner is None or submission.owner == principal.name:
        return principal.name
    if not access.may(Permission.SUBMIT_FOR_OTHERS):
        raise Forbidden(
            f"only admins may submit for another user, and {principal.name} is not an admin", code="not-admin"
        )
    return submission.owner


def _time_limit(
    submission: Submission, tenant: Tenant, environment: Environment, settings: ControlSettings
) -> int | None:
    """The requested time limit; for a session at most its maximum age, which it gets if it requests none."""
    most = environment.idle.over(tenant.idle).over(settings.idle).max_age_s
    asked = submission.time_limit_s
    if submission.kind is not Kind.SESSION or not most:
        return asked
    if asked is not None and asked > most:
        raise InvalidInput(
            TimeLimitBeyondMaxAge(requested_s=asked, max_age_s=most), field="time_limit_s", code="invalid-time"
        )
    return asked or most


def _name(submission: Submission, settings: ControlSettings) -> str:
    if submission.name is None and submission.command:
        return name_of_command(submission.command)
    name = submission.name or ""
    if len(name) > settings.max_name:
        raise InvalidInput(
            f"the name has {len(name)} characters; {settings.max_name} are allowed", field="name", code="invalid-name"
        )
    return name


def _command(submission: Submission) -> tuple[str, ...]:
    if not submission.command and submission.kind is not Kind.SESSION:
        raise InvalidInput(f"a {submission.kind} needs a command to run", field="command", code="invalid-command")
    if submission.command and not submission.command[0].strip():
        raise InvalidInput("the command starts with an empty program name", field="command", code="invalid-command")
    if sum(len(part) for part in submission.command) > 128 * 1024:
        raise TooLarge("the command is longer than 128 KiB; put it into a file", field="command")
    return submission.command


def _priority(submission: Submission, principal: Principal, settings: ControlSettings) -> tuple[int, bool]:
    """The priority, and whether its class is preemptible."""
    classes = {one.name: one for one in settings.priority_classes}
    may_raise = access_of(principal, settings).may(Permission.RAISE_PRIORITY)
    if isinstance(submission.priority, str):
        found = classes.get(submission.priority)
        if found is None:
            there = ", ".join(f"{one.name} ({one.priority})" for one in settings.priority_classes)
            raise InvalidInput(
                f"there is no priority class {submission.priority[:40]!r}; there are {there}, or a number",
                field="priority",
                code="unknown-priority",
            )
        if found.for_admins and not may_raise:
            raise Forbidden(f"only admins may give the priority {found.name!r}", code="not-admin")
        return found.priority, found.preemptible
    free = max((one.priority for one in classes.values() if not one.for_admins), default=0)
    if submission.priority > max(0, free) and not may_raise:
        raise Forbidden(f"only admins may raise a priority above {max(0, free)}; lowering it is free", code="not-admin")
    return submission.priority, False


def _array_size(submission: Submission, settings: ControlSettings) -> int:
    if submission.gang and submission.array_size > MAX_TOGETHER:
        raise InvalidInput(
            f"{submission.array_size} nodes were requested at once; at most {MAX_TOGETHER} start together",
            field="nodes",
            code="invalid-array",
        )
    if submission.array_size and submission.kind is not Kind.JOB:
        raise InvalidInput(f"only jobs can be arrays, not a {submission.kind}", field="array", code="invalid-array")
    if not 0 <= submission.array_size <= settings.max_array:
        raise InvalidInput(
            f"an array of {submission.array_size} was requested; 1 to {settings.max_array} are allowed",
            field="array",
            code="invalid-array",
        )
    return submission.array_size


@dataclass(slots=True)
class Advice:
    usage_reports: UsageReports
    catalogue: Catalogue
    settings: ControlSettings

    async def on(self, principal: Principal, submission: Submission) -> Suggestion | None:
        """Suggest from the owner's last runs; None without earlier runs. Raises the errors of `submit`."""
        principal.need(Scope.SUBMIT)
        spec = spec_of(submission, principal, self.catalogue, self.settings)
        found = await self.usage_reports.alike(spec.owner, spec.environment, spec.command)
        return suggestion_of(found, spec.request.gpu)
