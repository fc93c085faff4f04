"""Domain objects for tests, each complete and plausible, made from the few fields that a test cares about.

All test packages call these. Ids rise from call to call, as real ones do. Random objects are in `strategies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from commonage.domain.cron_jobs import CronJob, CronRule
from commonage.domain.images import Environment, Image, Kernel, Provenance
from commonage.domain.nodes import (
    LOCAL_SITE,
    Allocation,
    Device,
    DeviceKey,
    Node,
    NodeKey,
    NodeReport,
    NodeState,
    Share,
)
from commonage.domain.reasons.waiting import InQueue
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Reservation
from commonage.domain.usage import UsageReport, hash_command
from commonage.domain.workloads import Attempt, Event, EventKind, IdSequence, Kind, Spec, State, Workload, attempt_id

NOW: Final = 1_700_000_000.0
"""The default instant of all factories; FakeClock starts there."""

SITE: Final = LOCAL_SITE
NODE: Final = "node-1"
MODEL: Final = "A30"
DEVICE_MIB: Final = 24 * 1024

_ids = IdSequence()
_device_numbers = count()


def workload_id(at: float = NOW) -> str:
    return _ids.next(at, 0)


def request(cpus_milli: int = 1000, memory_mib: int = 1024, gpus: str | None = None) -> Request:
    """A request; `gpus` as users write it: `2`, `0.25`, `6GiB`, `A30:1`."""
    return Request(cpus_milli, memory_mib, parse_gpus(gpus))


def spec(*, gpus: str | None = None, **fields: Any) -> Spec:
    """Ann's request: a job that runs `true`. `fields` are those of Spec; `gpus` replaces those of its request."""
    base = Spec(
        kind=fields.get("kind", Kind.JOB),
        name="job",
        owner="ann",
        tenant="lab",
        environment="python",
        command=() if fields.get("kind") is Kind.SESSION else ("true",),
        request=request(),
    )
    made = replace(base, **fields)
    return replace(made, request=replace(made.request, gpu=parse_gpus(gpus))) if gpus is not None else made


def device(index: int = 0, *, uuid: str | None = None, memory_mib: int = DEVICE_MIB, **fields: Any) -> Device:
    """A healthy simulated GPU of 24 GiB; `fields` are those of Device."""
    name = uuid or f"GPU-{next(_device_numbers):08x}"
    return replace(Device(name, index, MODEL, memory_mib, simulated=True), **fields)


def node_key(name: str = "node-1") -> NodeKey:
    return NodeKey(SITE, name)


def device_key(uuid: str = "GPU-0") -> DeviceKey:
    return DeviceKey(SITE, uuid)


def node(
    name: str = NODE,
    devices: Sequence[Device] | int = 0,
    *,
    cpus_milli: int = 8000,
    memory_mib: int = 32 * 1024,
    **fields: Any,
) -> Node:
    """A ready node with these devices, or that number of them; `fields` are those of Node, and of its report `labels`,
    `faults`, `disk_pressure`, `disk_free_mib`, `usage`, `gone` and `awaits_admin`.
    """
    gpus = [device(i, uuid=f"GPU-{name}-{i}") for i in range(devices)] if isinstance(devices, int) else devices
    names = ("labels", "faults", "disk_pressure", "disk_free_mib", "usage", "gone", "awaits_admin")
    of_report = {key: fields.pop(key) for key in names if key in fields}
    report = replace(NodeReport(name, cpus_milli, memory_mib, tuple(gpus)), **of_report)
    return replace(Node(name, SITE, "fake", NodeState.READY, report, observed_at=NOW), **fields)


def share(gpu: Device | None = None, *, memory_mib: int | None = None, compute_milli: int | None = None) -> Share:
    """A part of a device, all of it by default; compute in proportion by default."""
    gpu = gpu or device()
    held = gpu.memory_mib if memory_mib is None else memory_mib
    compute = held * 1000 // gpu.memory_mib if compute_milli is None else compute_milli
    return Share(
        gpu.uuid,
        gpu.index,
        gpu.model,
        held,
        compute,
        whole=held == gpu.memory_mib,
        device_memory_mib=gpu.memory_mib,
        simulated=gpu.simulated,
        isolation=gpu.isolation,
    )


def allocation(
    attempt: str | None = None, *, node: str = NODE, shares: Sequence[Share] = (), **fields: Any
) -> Allocation:
    """An allocation of one core and 1 GiB on a node, with these shares; `fields` are those of Allocation."""
    base = Allocation(attempt or attempt_id(workload_id(), 1), SITE, node, 1000, 1024, tuple(shares), at=NOW)
    return replace(base, **fields)


def attempt(workload: str | None = None, number: int = 1, state: State = State.RUNNING, **fields: Any) -> Attempt:
    """The `number`-th attempt of a workload, allocated and started at NOW; an ended one ended ten seconds later.

    `fields` are those of Attempt; an `allocation` among them is used unchanged.
    """
    workload = workload or workload_id()
    name = attempt_id(workload, number)
    held = fields.pop("allocation", None) or allocation(name)
    made = Attempt(name, workload, number, state, held, started_at=None if state is State.STARTING else NOW)
    if state.is_terminal:
        code = {State.SUCCEEDED: 0, State.LOST: None}.get(state, 1)
        made = replace(made, ended_at=NOW + 10, exit_code=code)
    return replace(made, **fields)


_OF_WORKLOAD = frozenset(
    {
        "id",
        "submitted_at",
        "since",
        "reason",
        "array_index",
        "stop",
        "attempt",
        "not_before",
        "warned",
        "retried",
        "losses",
        "kept_until",
        "idle_warned_at",
        "version",
    }
)


def workload(state: State = State.QUEUED, *, spec_: Spec | None = None, **fields: Any) -> Workload:
    """A workload in `state`. `fields` are those of Workload or of `spec()` (`name`, `owner`, `kind`, `gpus` …).

    With `spec_` it shares this spec. One that does not wait gets an attempt on NODE in the same state, unless `attempt`
    is given.
    """
    own = {key: fields.pop(key) for key in list(fields) if key in _OF_WORKLOAD}
    if spec_ is not None and fields:
        raise TypeError(f"spec_ is taken as it is; {sorted(fields)} cannot change it")
    name = own.pop("id", None) or workload_id()
    made = Workload(name, spec_ or spec(**fields), state, submitted_at=NOW, since=NOW)
    if "attempt" not in own and not state.waits:
        own["attempt"] = attempt(name, state=state)
    return replace(made, **own)


def array(size: int, **fields: Any) -> list[Workload]:
    """An array of `size` queued jobs that share one spec, oldest first; `fields` as for `spec()`."""
    first = workload_id()
    shared = spec(array_id=first, array_size=size, **fields)
    names = [first, *(workload_id() for _ in range(size - 1))]
    return [workload(id=name, spec_=shared, array_index=index) for index, name in enumerate(names)]


def changed(before: Workload, **fields: Any) -> Workload:
    """The same workload one version later, ready to be an update; `fields` are those of Workload."""
    return replace(before, version=before.version + 1, **fields)


def event(seq: int = 0, of: Workload | None = None, kind: EventKind = EventKind.QUEUED, **fields: Any) -> Event:
    """An event at NOW, of `of` if given; `fields` are those of Event."""
    made = Event(kind, NOW, InQueue(), seq=seq)
    if of is not None:
        made = replace(
            made,
            workload_id=of.id,
            attempt_id=of.attempt.id if of.attempt else None,
            owner=of.spec.owner,
            tenant=of.spec.tenant,
            state=str(of.state),
        )
    return replace(made, **fields)


def environment(name: str = "python", **fields: Any) -> Environment:
    return replace(Environment(name, name.capitalize(), python="python3", kinds=tuple(Kind)), **fields)


def usage_report(workload: Workload, number: int = 1, **fields: Any) -> UsageReport:
    """The usage report of attempt `number`, which holds 8 GiB of a GPU and has not ended; `fields` are those of
    Usage report.
    """
    spec = workload.spec
    base = UsageReport(
        attempt_id=attempt_id(workload.id, number),
        workload_id=workload.id,
        owner=spec.owner,
        command_hash=hash_command(spec.environment, spec.command),
        began_at=NOW,
        ended_at=None,
        cpus_milli=spec.request.cpus_milli,
        memory_mib=spec.request.memory_mib,
        devices=1,
        vram_mib=8 * 1024,
        device_mib=DEVICE_MIB,
        gpu_milli=333,
    )
    return replace(base, **fields)


def reservation(starts_at: float = NOW + 3600, ends_at: float = NOW + 7200, **fields: Any) -> Reservation:
    """A reservation in an hour, for an hour, for one request of a tenant; `fields` are those of Reservation."""
    base = Reservation(f"r{workload_id()}", "course", starts_at, ends_at, request(gpus="4GiB"))
    return replace(base, **fields)


def cron_job(schedule: str = "0 7 * * *", time_zone: str = "UTC", **fields: Any) -> CronJob:
    """Ann's cron job, which was made NOW; `fields` are those of CronJob, CronRule or `spec()`."""
    rule = {key: fields.pop(key) for key in list(fields) if key in CronRule.__dataclass_fields__}
    own = {key: fields.pop(key) for key in list(fields) if key in CronJob.__dataclass_fields__}
    base = CronJob(f"c{workload_id()}", spec(**fields), CronRule(schedule, time_zone, **rule), NOW, NOW)
    return replace(base, **own)


def image(name: str = "lab/torch", tenant: str | None = "lab", **fields: Any) -> Image:
    reference = f"registry.test:5000/{name.partition(':')[0]}@sha256:{'ab' * 32}"
    kernels = (Kernel("python3", "Python", "/opt/commonage/kernels/python3"),)
    made = Provenance("ann", NOW - 60, "buildah 1.28", "debian:bookworm")
    base = Image(name, tenant, reference, "ann", NOW, kinds=tuple(Kind), kernels=kernels, provenance=made)
    return replace(base, **{"size_bytes": 500_000_000, **fields})
