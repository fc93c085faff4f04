"""Workloads, their attempts and explanations, and uploaded bundles."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import (
    Argument,
    Cpus,
    Gpus,
    LabelName,
    LabelValue,
    Mib,
    Name,
    PlainText,
    Seconds,
    Strength,
    Strict,
    VariableName,
)
from commonage.wire.usage import SuggestionOut, UsageReportOut

KindName = Literal["session", "job", "service"]
StateName = Literal["held", "queued", "starting", "running", "succeeded", "failed", "stopped", "timed_out", "lost"]
TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timed_out", "lost"})


class DependencyIn(Strict):
    """Waits until another workload meets the condition."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    condition: Literal["afterok", "afternotok", "afterany", "after"] = "afterok"


class SubmitIn(Strict):
    """A workload to submit. Durations and memory are numbers; the field names contain the unit.

    cpus: `2`, `1500m`. gpus as on the command line: `1` (GPUs), `0.25`, `1/3` (of one), `6GiB` (VRAM), `A100:6GiB`,
    `A100|H100:2` (any of these models).
    """

    kind: KindName = "job"
    name: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="A name for people. Default: made from the command."
    )
    environment: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="A catalogue entry. Default: the first one for this kind of workload."
    )
    command: list[Argument] = Field(
        default_factory=list,
        max_length=1024,
        description="The program and its arguments; optional for a session.",
        examples=[["python", "train.py"]],
    )
    cpus: Cpus | None = Field(None, description="Number of CPUs (cores).", examples=["2", 0.5, "1500m"])
    memory_mib: Mib | None = Field(None, description="Memory in MiB.", examples=[2048])
    gpus: Gpus | None = Field(
        None,
        description="GPUs, a fraction of one, or VRAM; optionally of a model.",
        examples=["6GiB", 0.25, "1", "A100:2"],
    )
    time_limit_s: Annotated[Seconds, Field(ge=1)] | None = Field(
        None, description="Time limit in seconds.", examples=[1800]
    )
    priority: Annotated[int, Field(ge=-100, le=100)] | Annotated[PlainText, Field(max_length=64)] = Field(
        0, description="A number, or the name of a priority class.", examples=[0, "low"]
    )
    preemptible: bool | None = Field(
        None, description="Others may preempt it; it is then requeued. Default: as its priority class."
    )
    requeue: bool | None = Field(
        None,
        description="If its node is lost or drained: requeue it, or restart the session on another node. "
        "Default: true for jobs and services, false for sessions.",
    )
    on: dict[LabelName, LabelValue] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels that its node must have; `node` and `site` select a node or site by name.",
        examples=[{"zone": "basement"}],
    )
    port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The port on which a service listens. Default: a free one, which replaces `{port}` in the command.",
    )
    health_path: Annotated[PlainText, Field(max_length=256)] = Field(
        "",
        description="The path that health checks of a service request; a status below 400 counts as healthy. "
        "Default: any answer of its front page counts.",
        examples=["/health"],
    )
    health_interval_s: Annotated[Seconds, Field(ge=1, le=3600)] | None = Field(
        None, description="Seconds between two health checks. Default: 10.", examples=[10]
    )
    near: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="A volume: it runs at a site that has it, whether it mounts it or not.", examples=["datasets"]
    )
    one_numa: bool = Field(False, description="All its GPUs must be on the same NUMA node.")
    grace_s: Seconds | None = Field(None, description="Seconds between SIGTERM and SIGKILL.", examples=[30])
    retries: int = Field(0, ge=0, le=100)
    backoff_s: Seconds | None = Field(
        None, description="Seconds before the first retry; doubled for each further retry.", examples=[60]
    )
    depends_on: list[DependencyIn] = Field(default_factory=list, max_length=100)
    array: int | None = Field(
        None, ge=1, le=10_000, description="Number of members of an array; COMMONAGE_ARRAY_INDEX counts from 0."
    )
    nodes: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of members of a gang: they start together on different nodes, or not at all.",
    )
    variables: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    secrets: dict[VariableName, Argument] = Field(
        default_factory=dict,
        max_length=256,
        description="Environment variables with secret values, which the API never shows.",
    )
    bundle: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="Digest of uploaded files, from POST /bundles."
    )
    volumes: list[Annotated[PlainText, Field(max_length=640)]] = Field(
        default_factory=list,
        max_length=32,
        description="Volumes as NAME, NAME:ro or NAME:rw, optionally with @/path to mount them there instead of at "
        "/volumes/NAME.",
        examples=[["datasets", "results:rw"]],
    )
    tenant: Annotated[PlainText, Field(max_length=128)] | None = None
    key: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="Idempotency key: a repeated submission with it returns the same workload."
    )
    owner: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="Submit for this user; for admins and the hub only."
    )
    groups: list[Annotated[PlainText, Field(max_length=256)]] | None = Field(
        None, max_length=1000, description="The groups of that user; ignored unless the hub sends them."
    )
    class_meeting: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="The meeting of a class that the session is for; ignored unless the hub sends it."
    )


class ShareOut(BaseModel):
    """The part of a GPU in an allocation. Compute in thousandths of the GPU."""

    device: str
    index: int
    label: str = Field("", description="The index of the GPU; for a MIG instance `device:place`.")
    model: str
    memory_mib: int
    compute_milli: int
    whole: bool
    isolation: str
    strength: Strength = ""
    simulated: bool


class RequestOut(BaseModel):
    """Requested resources. `gpus` has the syntax of the option `--gpus`."""

    cpus_milli: int
    memory_mib: int
    gpus: str | None
    text: str
    on: dict[str, str] = Field(default_factory=dict, description="Labels that its node must have.")
    one_numa: bool = False


class AttemptOut(BaseModel):
    """One attempt to run a workload. Instants are unix seconds."""

    id: str
    number: int
    state: StateName
    site: str
    node: str
    shares: list[ShareOut]
    allocated_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    reason: ReasonOut | None = Field(description="Why it ended; null until then.")


class WorkloadOut(BaseModel):
    """A workload. Instants are unix seconds.

    `url` is where browsers reach a running session or service: a full URL, or a path on the server if sessions share
    the origin of the portal.
    """

    id: str
    kind: KindName
    name: str
    owner: str
    tenant: str
    environment: str
    command: list[str]
    request: RequestOut
    state: StateName
    reason: ReasonOut
    notes: list[ReasonOut] = Field([], description="Further remarks: a problem with its node, a requested node.")
    position: int | None = Field(None, description="Position in the queue, from 1; only while queued.")
    progress: float | None = Field(None, description="Progress of its start, 0 to 1, for example of the image pull.")
    submitted_at: float
    since: float
    started_at: float | None
    ended_at: float | None
    deadline: float | None
    kept_until: float | None = Field(
        None, description="It was extended until then, against its time limit and idleness."
    )
    activity: Literal["active", "idle", "unknown"] | None = Field(
        None, description="Whether a running session is used. `unknown` counts as used."
    )
    active_at: float | None = Field(None, description="The last sign of use of a running session, if it is known.")
    exit_code: int | None
    site: str | None
    node: str | None
    shares: list[ShareOut]
    attempts: int
    priority: int
    time_limit_s: int | None
    grace_s: int
    retries: int
    depends_on: list[DependencyIn]
    array_id: str | None
    array_index: int | None
    array_size: int
    preemptible: bool = False
    requeue: bool = Field(False, description="It is requeued (a session restarted) if its node is lost or drained.")
    losses: int = Field(0, description="Number of requeues because its node was lost.")
    gang: bool = Field(False, description="The members of its array start together, on different nodes.")
    volumes: list[str] = Field(default_factory=list, description="Requested volumes with their modes.")
    near: str = Field("", description="The volume at whose sites it runs; empty: any site.")
    variables: dict[str, str]
    stopping: bool
    url: str | None
    bundle: str | None
    key: str | None
    cron_job: str | None = Field(None, description="The cron job that it is a run of.")
    due_at: float | None = Field(
        None, description="The time of the schedule that it runs for; null if it was triggered."
    )
    usage_report: UsageReportOut | None = Field(
        None, description="Used resources; only for a single workload, not in lists. Null if never measured."
    )
    internal_url: str | None = Field(None, description="URL of a service on its site's network.")
    port: int | None = Field(None, description="The port on which a service insists.")
    health_path: str = Field("", description="The path that health checks of a service request.")
    health_interval_s: int = Field(10, description="Seconds between two health checks of a service.")
    health: Literal["starting", "ready", "not-answering"] | None = Field(
        None, description="Whether a running service answers its health checks; null for other workloads."
    )


class SubmitOut(BaseModel):
    """The created workload, or the first of an array with the number of its members."""

    workload: WorkloadOut
    created: bool = Field(description="False if an earlier request with this key created it.")
    count: int = 1
    ids: list[str]


class WorkloadPage(BaseModel):
    """Workloads, newest first. For the next page, send `next_cursor` as `cursor`; null at the end."""

    items: list[WorkloadOut]
    next_cursor: str | None
    counts: dict[str, int] = Field(
        default_factory=dict, description="Number of all matching workloads in each state; only with counts=true."
    )


class StopIn(Strict):
    """The reason for the stop, shown to the owner."""

    reason: Annotated[PlainText, Field(max_length=500)] = ""


class HolderOut(BaseModel):
    """A workload that holds resources for which this one waits; or the total of what tenants hold that you do not see.

    Such a total has no id, name, owner and kind. Of the workloads of your tenants, the id and the name are shown to
    those who may see the workload.
    """

    workload_id: str | None
    name: str
    owner: str = Field(description="Empty for the total of other tenants.")
    kind: str
    node: str
    holds: str
    ends_at: float | None = Field(description="When it ends at the latest; for a total the last of its ends.")
    text: str = Field(description="All of it in words, like `another tenant, 8 GiB of GPU memory`.")


class JobsAheadOut(BaseModel):
    """Workloads that are ahead in the queue for the same reason.

    They are named by kind and owner only, and those of other tenants not at all.
    """

    precedence: str = Field(
        description="`priority`, `fair-share`, `older`, or `own`: earlier workloads of the same owner."
    )
    count: int
    nearest: list[str] = Field(description="The nearest ones, each as `job of ann`.")
    text: str


class SiteChoiceOut(BaseModel):
    """A site, and why the workload does not start there."""

    site: str
    is_candidate: bool = Field(description="It may start there at some time.")
    reason: ReasonOut = Field(description="`SiteHasRoom` if nothing there is in its way now.")
    free_at: float | None = Field(description="When time limits leave room there; null if unknown.")
    text: str


class ExplanationOut(BaseModel):
    """Why a workload waits, and when it is expected to start. Instants are unix seconds."""

    workload_id: str | None
    state: StateName | None
    summary: str
    startable_now: bool
    position: int | None
    queue_length: int
    jobs_ahead: list[JobsAheadOut] = Field([], description="Workloads ahead in the queue, by reason.")
    reasons: list[ReasonOut] = Field(
        description="Missing resources, one reason of each kind; for the node that lacks the least first."
    )
    pending_node: ReasonOut | None = Field(None, description="A requested node that could run it.")
    site: str | None = Field(None, description="The site in whose queue it is shown, if there are several.")
    sites: list[SiteChoiceOut] = Field(
        [], description="Each site that you may see, the candidates first; empty if there is only one."
    )
    holders: list[HolderOut]
    fits_now: str | None = Field(description="A smaller request that would start now, as text.")
    fits_now_gpus: str | None = Field(description="The same as a value of `gpus`, if nothing else differs.")
    fits_now_request: RequestOut | None = Field(None, description="The same as a request, to submit instead.")
    expected_start_at: float | None = Field(description="Null if unknown.")
    earliest_start_at: float | None = Field(None, description="Start of the range, if past run times give one.")
    latest_start_at: float | None = Field(
        None, description="End of the range, if past run times or time limits give one."
    )
    confidence: str = Field(
        "unknown",
        description="Confidence of the expected start. `limits`: from time limits, no later unless others move ahead; "
        "`likely`: from past run times; `guess`; `unknown`.",
    )
    basis: ReasonOut | None = Field(description="Basis of the expected start, or why it is unknown.")
    suggestion: SuggestionOut | None = Field(None, description="For a dry run: a request suggested by earlier runs.")
    quotas: list[ReasonOut] = Field([], description="For a dry run: what each quota leaves, as `QuotaUse`.")


class BundleOut(BaseModel):
    """An uploaded bundle of files."""

    digest: str
    size_bytes: int


class AttemptList(BaseModel):
    """All attempts of a workload, oldest first."""

    items: list[AttemptOut]


class WorkloadsQuery(Strict):
    """Selects workloads; all given parameters must match."""

    owner: Name | None = Field(None, description="The owner. Which workloads of others you see depends on your roles.")
    kind: KindName | None = None
    state: list[StateName] = Field(default_factory=list, description="Any of these states; repeat the parameter.")
    site: Name | None = Field(None, description="The site that it runs on.")
    node: Name | None = Field(None, description="The node that it runs on.")
    environment: Name | None = None
    array: Annotated[PlainText, Field(max_length=64)] | None = Field(None, description="Members of this array.")
    cron_job: Annotated[PlainText, Field(max_length=64)] | None = Field(None, description="Runs of this cron job.")
    text: Annotated[PlainText, Field(max_length=200)] | None = Field(
        None, description="Part of the name, or the start of the id."
    )
    limit: int = Field(100, ge=1, le=500)
    cursor: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="`next_cursor` of the previous page."
    )
    counts: bool = Field(False, description="Also count all matching workloads, by state.")
