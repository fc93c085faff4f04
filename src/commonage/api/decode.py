"""From the wire to control: names and texts become the domain's own. The only place that does.

Shapes were checked by pydantic before (`commonage.wire`); here is what needs the domain to judge.
"""

from __future__ import annotations

import re

from commonage.control.reservations.reservations import Wanted
from commonage.control.reservations.windows import window_of, windows, zone_of
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import InvalidInput
from commonage.domain.quantities import parse_cpus
from commonage.domain.requests import GpuRequest, Request, parse_gpus, parse_labels
from commonage.domain.volumes import parse_volume
from commonage.domain.workloads import Condition, Dependency, Kind, RetryPolicy, State
from commonage.ports.store import Filter
from commonage.wire.queries import WorkloadsQuery
from commonage.wire.tenants import ReservationIn
from commonage.wire.workloads import SubmitIn

# A pebibyte: beyond any node, and small enough for every database.
MAX_VRAM_MIB = 1024**3
MOST_PRIORITY = 100
_DEFAULT_RETRY = RetryPolicy()
_DEFAULT_GRACE_S = 10


def submission(ask: SubmitIn) -> Submission:
    """What is asked, in quantities. Raises InvalidInput with the field's own code."""
    return Submission(
        kind=Kind(ask.kind),
        command=tuple(ask.command),
        name=ask.name,
        environment=ask.environment,
        cpus_milli=None if ask.cpus is None else parse_cpus(ask.cpus),
        memory_mib=ask.memory_mib,
        gpu=_gpu(ask.gpus),
        variables=tuple(ask.variables.items()),
        secrets=tuple(ask.secrets.items()),
        priority=_priority(ask.priority),
        time_limit_s=ask.time_limit_s,
        grace_s=_DEFAULT_GRACE_S if ask.grace_s is None else ask.grace_s,
        retry=_retry(ask),
        depends_on=tuple(Dependency(one.id, Condition(one.condition)) for one in ask.depends_on),
        array_size=_members(ask),
        gang=ask.nodes is not None,
        preemptible=ask.preemptible,
        requeue=ask.requeue,
        labels=parse_labels(ask.on.items()),
        one_numa=ask.one_numa,
        bundle=ask.bundle,
        volumes=tuple(parse_volume(one) for one in ask.volumes),
        tenant=ask.tenant,
        key=ask.key,
        owner=ask.owner,
        groups=None if ask.groups is None else tuple(ask.groups),
    )


def _priority(asked: int | str) -> int | str:
    """A number, also where it comes as text, or the name of a class."""
    if not isinstance(asked, str) or not re.fullmatch(r"[+-]?\d{1,4}", asked.strip(), re.ASCII):
        return asked if isinstance(asked, int) else asked.strip()
    number = int(asked)
    if not -MOST_PRIORITY <= number <= MOST_PRIORITY:
        raise InvalidInput(f"priority must be from -100 to 100, or the name of a class, not {number}", field="priority")
    return number


def _members(ask: SubmitIn) -> int:
    """How many workloads alike are asked, 0 for a single one."""
    if ask.nodes is not None and ask.array is not None:
        raise InvalidInput(
            "a gang of `nodes` is an array already; give either nodes or array", field="nodes", code="invalid-array"
        )
    return ask.nodes or ask.array or 0


def _gpu(text: str | float | None) -> GpuRequest | None:
    gpu = parse_gpus(text)
    if gpu is not None and gpu.vram_mib > MAX_VRAM_MIB:
        raise InvalidInput("gpus asks for more than a PiB of VRAM", field="gpus", code="invalid-gpus")
    return gpu


def _retry(ask: SubmitIn) -> RetryPolicy:
    if ask.backoff_s is None:
        return _DEFAULT_RETRY if ask.retries == 0 else RetryPolicy(ask.retries)
    return RetryPolicy(ask.retries, float(ask.backoff_s))


def which(query: WorkloadsQuery) -> Filter:
    """The workloads that a list asks for."""
    return Filter(
        owner=query.owner,
        kinds=None if query.kind is None else (Kind(query.kind),),
        states=frozenset(State(name) for name in query.state) or None,
        node=query.node,
        array_id=query.array,
        environment=query.environment,
        text=query.text or None,
    )


def reservation(ask: ReservationIn, now: float, settings: ControlSettings) -> Wanted:
    """What is to be reserved. Raises InvalidInput with the field's own code."""
    begin, end = window_of(ask.starts_at, ask.ends_at, zone_of(ask.time_zone), now)
    return Wanted(
        tenant=ask.tenant,
        windows=windows(begin, end, ask.every, ask.last_day),
        request=Request(
            settings.default_cpus_milli if ask.cpus is None else parse_cpus(ask.cpus),
            settings.default_memory_mib if ask.memory_mib is None else ask.memory_mib,
            _gpu(ask.gpus),
            parse_labels(ask.on.items()),
        ),
        count=ask.count,
        title=ask.title,
        owner=ask.owner,
    )
