"""From the domain to the wire: what the API shows of a thing, and to whom. The only place that does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from commonage.api import encode_devices
from commonage.api.encode_reasons import optional, reason
from commonage.control.node_pool import EnvironmentView, LaunchView, NodeView
from commonage.control.nodes.node_states import reason_for
from commonage.control.queries.look import Standing
from commonage.domain.events import Event
from commonage.domain.explanations import Explanation, Holder, JobsAhead
from commonage.domain.nodes import Share
from commonage.domain.principals import Principal
from commonage.domain.requests import Request
from commonage.domain.statuses import LogLine
from commonage.domain.usage import Prices, Usage
from commonage.domain.workloads import Attempt, Kind, State, Workload
from commonage.messages import explanations
from commonage.messages.waiting import resources
from commonage.ports.metrics import Point
from commonage.wire.origins import session_url
from commonage.wire.platform import (
    EnvironmentOut,
    LaunchOptions,
    NodeOut,
    SizeChoice,
    TenantChoice,
    UsageRow,
)
from commonage.wire.workloads import (
    AttemptOut,
    DependencyIn,
    EventOut,
    ExplanationOut,
    HolderOut,
    JobsAheadOut,
    LogEndOut,
    LogLineOut,
    PointOut,
    RequestOut,
    SeriesOut,
    ShareOut,
    WorkloadOut,
)

UNITS = {
    "cpu_cores": "cores",
    "memory_mib": "MiB",
    "gpu_memory_mib": "MiB",
    "gpu_utilisation": "ratio",
    "power_w": "W",
    "temperature_c": "°C",
    "allocated_cpu_cores": "cores",
    "allocated_memory_mib": "MiB",
    "disk_free_mib": "MiB",
}


def workload(found: Workload, standing: Standing, session_origin: str = "", *, internal: bool = False) -> WorkloadOut:
    """A workload; browsers reach sessions at `session_origin`. `internal` adds its address on the site's network."""
    spec, attempt = found.spec, found.attempt
    # While it waits for another try, where the last one was says nothing about it.
    placed = attempt if attempt is not None and not found.state.waits else None
    ended = found.state.is_terminal
    return WorkloadOut(
        id=found.id,
        kind=spec.kind.value,
        name=spec.name,
        owner=spec.owner,
        tenant=spec.tenant,
        environment=spec.environment,
        command=list(spec.command),
        request=request(spec.request),
        state=found.state.value,
        reason=reason(standing.reason),
        notes=[reason(one) for one in standing.notes],
        position=standing.position,
        progress=standing.progress,
        submitted_at=found.submitted_at,
        since=found.since,
        started_at=placed.started_at if placed else None,
        ended_at=((attempt and attempt.ended_at) or found.since) if ended else None,
        deadline=found.deadline,
        exit_code=attempt.exit_code if attempt else None,
        node=placed.allocation.node if placed else None,
        shares=[share(one) for one in placed.allocation.shares] if placed else [],
        attempts=found.attempts,
        priority=spec.priority,
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        retries=spec.retry.retries,
        depends_on=[DependencyIn(id=one.workload_id, condition=one.condition.value) for one in spec.depends_on],
        array_id=spec.array_id,
        array_index=found.array_index,
        array_size=spec.array_size,
        preemptible=spec.preemptible,
        requeue=spec.requeue,
        losses=found.losses,
        gang=spec.gang,
        volumes=[one.text for one in spec.volumes],
        variables=dict(spec.variables),
        stopping=found.stop is not None and not ended,
        url=_address(found, session_origin),
        bundle=spec.bundle,
        key=spec.key,
        internal_url=attempt.url if attempt and (internal or spec.kind is Kind.SERVICE) else None,
    )


def _address(found: Workload, session_origin: str) -> str | None:
    """Where browsers reach a running session; services have no route of their own."""
    if found.spec.kind is not Kind.SESSION or found.state is not State.RUNNING:
        return None
    return session_url(session_origin, found.spec.owner, found.spec.name)


def request(asked: Request) -> RequestOut:
    """What was asked."""
    return RequestOut(
        cpus_milli=asked.cpus_milli,
        memory_mib=asked.memory_mib,
        gpus=asked.gpu.text if asked.gpu else None,
        text=str(asked),
        on=dict(asked.labels),
        one_numa=asked.one_numa,
    )


def share(held: Share) -> ShareOut:
    """Part of a GPU."""
    return ShareOut(
        device=held.device_uuid,
        index=held.device_index,
        label=held.label,
        model=held.model,
        memory_mib=held.memory_mib,
        compute_milli=held.compute_milli,
        whole=held.whole,
        isolation=held.isolation.value,
        simulated=held.simulated,
    )


def attempt(found: Attempt) -> AttemptOut:
    """One try."""
    return AttemptOut(
        id=found.id,
        number=found.number,
        state=found.state.value,
        node=found.allocation.node,
        shares=[share(one) for one in found.allocation.shares],
        allocated_at=found.allocation.at,
        started_at=found.started_at,
        ended_at=found.ended_at,
        exit_code=found.exit_code,
        reason=optional(found.reason),
    )


def explanation(found: Explanation, state: State | None, who: Principal) -> ExplanationOut:
    """Why it waits; what is not the caller's to see of those who hold the rest is left out."""
    return ExplanationOut(
        workload_id=found.workload_id,
        state=state.value if state else None,
        summary=explanations.summary(found),
        startable_now=found.startable_now,
        position=found.position,
        queue_length=found.queue_length,
        jobs_ahead=[jobs_ahead(one) for one in found.jobs_ahead],
        reasons=[reason(one) for one in found.reasons],
        coming=optional(found.coming),
        holders=[holder(one, who) for one in found.holders],
        fits_now=found.fits_now,
        fits_now_gpus=found.fits_now_gpus,
        fits_now_request=None if found.fits_now_request is None else request(found.fits_now_request),
        expected_start_at=found.expected_start_at,
        earliest_start_at=found.earliest_start_at,
        latest_start_at=found.latest_start_at,
        confidence=found.confidence.value,
        basis=optional(found.basis),
    )


def jobs_ahead(found: JobsAhead) -> JobsAheadOut:
    """Who stands ahead for one reason."""
    nearest = [f"{kind} of {owner}" for kind, owner in found.nearest]
    return JobsAheadOut(
        precedence=found.precedence.value, count=found.count, nearest=nearest, text=explanations.ahead(found)
    )


def holder(found: Holder, who: Principal) -> HolderOut:
    """Who holds it: everybody may know whose it is and until when, but not what it is called."""
    visible = who.may_see(found.owner)
    return HolderOut(
        workload_id=found.workload_id if visible else None,
        name=found.name if visible else "",
        owner=found.owner,
        kind=found.kind,
        node=found.node,
        holds=resources(found.holds),
        ends_at=found.ends_at,
    )


def event(found: Event) -> EventOut:
    """Something that happened."""
    return EventOut(
        seq=found.seq,
        kind=found.kind.value,
        at=found.at,
        reason=reason(found.reason),
        workload_id=found.workload_id,
        attempt_id=found.attempt_id,
        owner=found.owner,
        state=found.state,
    )


def log_line(found: LogLine) -> LogLineOut:
    """A line of output; what is no text in it is shown as such."""
    return LogLineOut(text=found.text.encode(errors="replace").decode(), offset=found.offset)


def log_end(found: Workload, number: int | None) -> LogEndOut:
    """Where the workload stands after the output of its try `number`."""
    last = found.attempt
    return LogEndOut(
        state=found.state.value,
        exit_code=last.exit_code if last and last.number == number else None,
        reason=reason(found.reason),
        attempt=number,
    )


def series(subject: str, found: Mapping[str, Sequence[Point]]) -> list[SeriesOut]:
    """Measurements of one subject."""
    return [
        SeriesOut(
            metric=metric,
            subject=subject,
            unit=UNITS.get(metric, ""),
            points=[PointOut(at=one.at, mean=one.mean, least=one.least, most=one.most) for one in points],
        )
        for metric, points in found.items()
    ]


def node(view: NodeView, who: Principal) -> NodeOut:
    """A node and what is free on it, as `who` may see it."""
    known, report = view.node, view.node.report
    return NodeOut(
        name=known.name,
        site=known.site,
        engine=known.engine,
        state=known.state.value,
        reason=reason_for(known, who),
        observed_at=known.observed_at,
        cpus_milli=report.cpus_milli,
        free_cpus_milli=view.free_cpus_milli,
        memory_mib=report.memory_mib,
        free_memory_mib=view.free_memory_mib,
        devices=[encode_devices.device(one) for one in view.devices],
        workloads=view.workloads,
        labels=dict(report.labels),
        notes=list(view.notes),
        leave_by=known.leave_by,
    )


def environment(view: EnvironmentView) -> EnvironmentOut:
    """A catalogue entry."""
    entry, status = view.environment, view.status
    return EnvironmentOut(
        name=entry.name,
        title=entry.title,
        description=entry.description,
        kinds=[kind.value for kind in entry.kinds],
        requirements=list(entry.requirements),
        state=status.state.value,
        reason=optional(status.reason),
        progress=status.progress,
        image=entry.image,
        tenant=entry.tenant,
        needs_gpu=entry.needs_gpu,
        vram_mib=entry.least_vram_mib,
    )


def launch_options(view: LaunchView) -> LaunchOptions:
    """What may be had, and what is free."""
    return LaunchOptions(
        environments=[environment(one) for one in view.environments],
        gpu_choices=[
            SizeChoice(gpus=one.gpus, title=one.title, free_now=one.free_now, why_not=optional(one.why_not))
            for one in view.gpu_choices
        ],
        models=list(view.models),
        max_cpus_milli=view.max_cpus_milli,
        max_memory_mib=view.max_memory_mib,
        max_vram_mib=view.max_vram_mib,
        free_cpus_milli=view.free_cpus_milli,
        free_memory_mib=view.free_memory_mib,
        simulated_gpus=view.simulated_gpus,
        tenants=[TenantChoice(name=one.name, title=one.title) for one in view.tenants],
        priorities=[one.name for one in view.priority_classes],
    )


def usage(found: Iterable[Usage], prices: Prices) -> list[UsageRow]:
    """What was held, with its price."""
    return [
        UsageRow(
            subject=one.subject,
            workloads=one.workloads,
            gpu_gib_h=one.gpu_gib_h,
            gpu_h=one.gpu_h,
            cpu_h=one.cpu_h,
            memory_gib_h=one.memory_gib_h,
            cost=prices.cost(one),
        )
        for one in found
    ]


def counts(found: Mapping[State, int]) -> dict[str, int]:
    """How many in each state."""
    return {state.value: number for state, number in found.items()}
