"""A parsed ask, and how it becomes a spec: defaults filled in, bounds kept, nothing unknown let through."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from commonage.control.settings import ControlSettings
from commonage.domain.environments import Environment
from commonage.domain.errors import Forbidden, InvalidInput, TooLarge
from commonage.domain.principals import Principal
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.workloads import Dependency, Kind, RetryPolicy, Spec

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """What somebody asks to run, not yet admitted. None takes the installation's default."""

    kind: Kind
    command: tuple[str, ...] = ()
    name: str | None = None
    environment: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    gpu: GpuRequest | None = None
    variables: Variables = ()
    secrets: Variables = ()
    priority: int = 0
    time_limit_s: int | None = None
    grace_s: int = 10
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    depends_on: tuple[Dependency, ...] = ()
    array_size: int = 0
    bundle: str | None = None
    tenant: str | None = None
    key: str | None = None
    owner: str | None = None


def spec_of(ask: Submission, who: Principal, catalogue: Mapping[str, Environment], settings: ControlSettings) -> Spec:
    """The spec of an ask, or the error that says what is wrong with it."""
    environment = _environment(ask, catalogue, settings)
    owner = _owner(ask, who)
    return Spec(
        kind=ask.kind,
        name=_name(ask, settings),
        owner=owner,
        tenant=_tenant(ask, who, settings),
        environment=environment.name,
        command=_command(ask),
        request=Request(
            ask.cpus_milli or settings.default_cpus_milli, ask.memory_mib or settings.default_memory_mib, ask.gpu
        ),
        variables=ask.variables,
        secrets=ask.secrets,
        priority=_priority(ask, who),
        time_limit_s=ask.time_limit_s,
        grace_s=ask.grace_s,
        retry=ask.retry,
        depends_on=ask.depends_on,
        bundle=ask.bundle,
        array_size=_array_size(ask, settings),
        key=ask.key,
    )


def _environment(ask: Submission, catalogue: Mapping[str, Environment], settings: ControlSettings) -> Environment:
    default = settings.session_environment if ask.kind is Kind.SESSION else settings.job_environment
    name = ask.environment or default
    found = catalogue.get(name)
    offered = sorted(one.name for one in catalogue.values() if ask.kind in one.kinds)
    if found is None or ask.kind not in found.kinds:
        shown = name if len(name) <= 60 else name[:57] + "..."
        what = "there is no environment" if found is None else f"{ask.kind}s cannot run in"
        raise InvalidInput(
            f"{what} {shown!r}; for a {ask.kind} there are: {', '.join(offered) or 'none'}",
            field="environment",
            code="unknown-environment",
        )
    return found


def _owner(ask: Submission, who: Principal) -> str:
    if ask.owner is None or ask.owner == who.name:
        return who.name
    if not who.is_admin:
        raise Forbidden(f"only admins may submit for somebody else, and {who.name} is none", code="not-admin")
    return ask.owner


def _tenant(ask: Submission, who: Principal, settings: ControlSettings) -> str:
    tenant = ask.tenant or settings.default_tenant
    if tenant == settings.default_tenant or who.is_admin or tenant in who.groups:
        return tenant
    raise Forbidden(f"{who.name} is no member of {tenant!r}", code="not-a-member")


def _name(ask: Submission, settings: ControlSettings) -> str:
    if ask.name is None and ask.command:
        return " ".join(shlex.join(ask.command).split())[:60].strip()
    name = ask.name or ""
    if len(name) > settings.max_name:
        raise InvalidInput(
            f"the name has {len(name)} characters; {settings.max_name} are allowed", field="name", code="invalid-name"
        )
    return name


def _command(ask: Submission) -> tuple[str, ...]:
    if not ask.command and ask.kind is not Kind.SESSION:
        raise InvalidInput(f"a {ask.kind} needs a command to run", field="command", code="invalid-command")
    if ask.command and not ask.command[0].strip():
        raise InvalidInput("the command starts with nothing", field="command", code="invalid-command")
    if sum(len(part) for part in ask.command) > 128 * 1024:
        raise TooLarge("the command is longer than 128 KiB; put it into a file", field="command")
    return ask.command


def _priority(ask: Submission, who: Principal) -> int:
    if ask.priority > 0 and not who.is_admin:
        raise Forbidden("only admins may raise a priority above 0; lowering it is free", code="not-admin")
    return ask.priority


def _array_size(ask: Submission, settings: ControlSettings) -> int:
    if ask.array_size and ask.kind is not Kind.JOB:
        raise InvalidInput(f"only jobs come as arrays, not a {ask.kind}", field="array", code="invalid-array")
    if not 0 <= ask.array_size <= settings.max_array:
        raise InvalidInput(
            f"an array of {ask.array_size} was asked for; 1 to {settings.max_array} are allowed",
            field="array",
            code="invalid-array",
        )
    return ask.array_size
