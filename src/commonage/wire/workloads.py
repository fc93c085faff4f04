"""Workloads, their attempts, their explanation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from commonage.units import MAX_DURATION_S
from commonage.wire.usage_reports import SuggestionOut, UsageReportOut

KindName = Literal["session", "job", "service"]
StateName = Literal["held", "queued", "starting", "running", "succeeded", "failed", "stopped", "timed_out", "lost"]
TERMINAL_STATES = frozenset({"succeeded", "failed", "stopped", "timed_out", "lost"})
# Text that a database and a terminal can carry: no control characters (and no lone surrogates: pydantic refuses those).
PlainText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=131_072)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
LabelValue = Annotated[PlainText, StringConstraints(min_length=1, max_length=128)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=MAX_DURATION_S)]
Mib = Annotated[int, Field(strict=True, ge=1, le=1024**3)]  # at most a PiB: more than any node has
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class Strict(BaseModel):
    """What clients send: an unknown field is an error, not a silence."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class DependencyIn(Strict):
    """Wait for another workload."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    condition: Literal["afterok", "afternotok", "afterany", "after"] = "afterok"


class SubmitIn(Strict):
    """What to run. Durations and amounts of memory are numbers; their names carry the unit.

    cpus `2`, `1500m`; gpus as on the command line: `1` (GPUs), `0.25`, `1/3` (of one), `6GiB` (VRAM), `A100:6GiB`,
    `A100|H100:2` (any of these models).
    """

    kind: KindName = "job"
    name: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="For people; made from the command if left out."
    )
    environment: Annotated[PlainText, Field(max_length=128)] | None = Field(
        None, description="A catalogue entry; the first one offered for the kind if left out."
    )
    command: list[Argument] = Field(
        default_factory=list,
        max_length=1024,
        description="The program and its arguments; a session needs none.",
        examples=[["python", "train.py"]],
    )
    cpus: str | float | None = Field(None, description="Cores.", examples=["2", 0.5, "1500m"])
    memory_mib: Mib | None = Field(None, description="Memory in MiB.", examples=[2048])
    gpus: str | float | None = Field(
        None, description="GPUs, a part of one, or VRAM; of a model if named.", examples=["6GiB", 0.25, "1", "A100:2"]
    )
    time_limit_s: Annotated[Seconds, Field(ge=1)] | None = Field(
        None, description="Time limit in seconds.", examples=[1800]
    )
    priority: Annotated[int, Field(ge=-100, le=100)] | Annotated[PlainText, Field(max_length=64)] = Field(
        0, description="A number, or the name of a priority class.", examples=[0, "low"]
    )
    preemptible: bool | None = Field(
        None, description="Others may take its place; it then returns to the queue. As its priority class if left out."
    )
    requeue: bool | None = Field(
        None,
        description="What becomes of it when its node is lost or drained: back to the queue, for a session started "
        "again elsewhere. If left out, true for jobs and services, false for sessions.",
    )
    on: dict[LabelName, LabelValue] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels that its node must carry; `node` and `site` name node and place themselves.",
        examples=[{"zone": "basement"}],
    )
    one_numa: bool = Field(False, description="Several GPUs must hang on the same NUMA node.")
    grace_s: Seconds | None = Field(None, description="Seconds between SIGTERM and SIGKILL.", examples=[30])
    retries: int = Field(0, ge=0, le=100)
    backoff_s: Seconds | None = Field(
        None, description="Seconds before the first retry; doubled for each further one.", examples=[60]
    )
    depends_on: list[DependencyIn] = Field(default_factory=list, max_length=100)
    array: int | None = Field(
        None, ge=1, le=10_000, description="So many workloads alike, COMMONAGE_ARRAY_INDEX from 0."
    )
    nodes: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="A gang: so many workloads alike that start together, each on a node of its own, or not at all.",
    )
    variables: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    secrets: dict[VariableName, Argument] = Field(
        default_factory=dict, max_length=256, description="Variables that are never shown again."
    )
    bundle: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="Digest of files sent before, by POST /bundles."
    )
    volumes: list[Annotated[PlainText, Field(max_length=640)]] = Field(
        default_factory=list,
        max_length=32,
        description="Volumes, as NAME, NAME:ro or NAME:rw, each with @/path behind for another place than "
        "/volumes/NAME.",
        examples=[["datasets", "results:rw"]],
    )
    tenant: Annotated[PlainText, Field(max_length=128)] | None = None
    key: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="Your own key: submitting again with it gives the same workload."
    )
    owner: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="On whose behalf; admins and the hub only."
    )
    groups: list[Annotated[PlainText, Field(max_length=256)]] | None = Field(
        None, max_length=1000, description="The groups of the one on whose behalf it is; heeded from the hub only."
    )


class ReasonOut(BaseModel):
    """Why something is as it is. `code` is stable, and one of docs/reference/reasons.md."""

    code: str
    params: dict[str, Any] = Field(description="Of this code; names carry the unit.")
    message: str = Field(description="For people. It may change at any time: programs read code and params.")


class ShareOut(BaseModel):
    """Part of a GPU held."""

    device: str
    index: int
    label: str = Field("", description="How people call the GPU: its index, of a MIG instance `device:place`.")
    model: str
    memory_mib: int
    compute_milli: int
    whole: bool
    isolation: str
    simulated: bool


class RequestOut(BaseModel):
    """What was asked. `gpus` is text as `--gpus` takes it."""

    cpus_milli: int
    memory_mib: int
    gpus: str | None
    text: str
    on: dict[str, str] = Field(default_factory=dict, description="Labels that its node must carry.")
    one_numa: bool = False


class AttemptOut(BaseModel):
    """One try."""

    id: str
    number: int
    state: StateName
    node: str
    shares: list[ShareOut]
    allocated_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    reason: ReasonOut | None = Field(description="Why it ended; null before.")


class WorkloadOut(BaseModel):
    """A workload. Instants are unix seconds UTC.

    `url` is where a browser reaches a running session: a whole address, or, if sessions share the origin of the portal,
    a path below the server's address.
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
    notes: list[ReasonOut] = Field([], description="What else to know: trouble with its node, a requested node.")
    position: int | None = Field(None, description="In the queue, from 1; only while queued.")
    progress: float | None = Field(
        None, description="Of what it waits for while it starts, 0 to 1: its image being fetched, say."
    )
    submitted_at: float
    since: float
    started_at: float | None
    ended_at: float | None
    deadline: float | None
    exit_code: int | None
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
    requeue: bool = Field(False, description="It queues (a session starts) again when its node is lost or drained.")
    losses: int = Field(0, description="How often it queued again because its node was lost.")
    gang: bool = Field(False, description="The members of its array start together, on different nodes.")
    volumes: list[str] = Field(default_factory=list, description="As they were asked for, with their modes.")
    variables: dict[str, str]
    stopping: bool
    url: str | None
    bundle: str | None
    key: str | None
    usage_report: UsageReportOut | None = Field(
        None, description="Of one workload alone, not in lists: what it used; null where it was never measured."
    )
    internal_url: str | None = Field(None, description="Where a service answers on its site's network.")


class SubmitOut(BaseModel):
    """What was made: one workload, or an array's first with the number of all."""

    workload: WorkloadOut
    created: bool = Field(description="False if your key had made it before.")
    count: int = 1
    ids: list[str]


class WorkloadPage(BaseModel):
    """Newest first. Ask again with `cursor=next_cursor` for the rest; null at the end."""

    items: list[WorkloadOut]
    next_cursor: str | None
    counts: dict[str, int] = Field(default_factory=dict, description="Of all that match, by state; with counts=true.")


class StopIn(Strict):
    """Why it should end; for its owner to read."""

    reason: Annotated[PlainText, Field(max_length=500)] = ""


class HolderOut(BaseModel):
    """Who holds what this one waits for. Names of other people's work are shown to admins and its owners only."""

    workload_id: str | None
    name: str
    owner: str
    kind: str
    node: str
    holds: str
    ends_at: float | None


class JobsAheadOut(BaseModel):
    """So many stand ahead for one reason; other people's work is named by kind and owner only."""

    precedence: str = Field(description="`priority`, `fair-share`, `older`, or `own`: earlier ones of the same owner.")
    count: int
    nearest: list[str] = Field(description="The nearest few, each as `job of ann`.")
    text: str


class ExplanationOut(BaseModel):
    """Why it waits and until when."""

    workload_id: str | None
    state: StateName | None
    summary: str
    startable_now: bool
    position: int | None
    queue_length: int
    jobs_ahead: list[JobsAheadOut] = Field([], description="Who stands ahead, by reason.")
    reasons: list[ReasonOut] = Field(description="What is missing, one of each kind, the nearest node first.")
    coming: ReasonOut | None = Field(None, description="A node that was requested and could run it.")
    holders: list[HolderOut]
    fits_now: str | None = Field(description="What smaller request would start now, in words. It was tried.")
    fits_now_gpus: str | None = Field(description="The same as text for `gpus`, where nothing else differs.")
    fits_now_request: RequestOut | None = Field(None, description="The same, to submit instead.")
    expected_start_at: float | None = Field(description="Unix seconds; null where nothing tells.")
    earliest_start_at: float | None = Field(None, description="Where the past gives a range: its beginning.")
    latest_start_at: float | None = Field(None, description="Where the past or time limits give a range: its end.")
    confidence: str = Field(
        "unknown",
        description="`limits`: by time limits, no later unless somebody comes ahead; `likely`: by what such workloads "
        "usually take; `guess`; `unknown`.",
    )
    basis: ReasonOut | None = Field(description="What the expected start rests on, or why there is none.")
    suggestion: SuggestionOut | None = Field(None, description="Of a dry run: what earlier runs of it needed.")


class EventOut(BaseModel):
    """Something that happened."""

    seq: int
    kind: str
    at: float
    reason: ReasonOut
    workload_id: str | None
    attempt_id: str | None
    owner: str | None
    state: str | None


class EventPage(BaseModel):
    """Oldest first; ask with `after=` the last seq for more."""

    items: list[EventOut]
    next_cursor: str | None


class LogLineOut(BaseModel):
    """One line of output; `offset` is the byte behind it."""

    text: str
    offset: int


class PointOut(BaseModel):
    """A bucket of a metric."""

    at: float
    mean: float
    least: float
    most: float


class SeriesOut(BaseModel):
    """One metric over time."""

    metric: str
    subject: str
    unit: str
    points: list[PointOut]


class MetricsOut(BaseModel):
    """The metrics of a workload, node or device."""

    since: float
    until: float
    series: list[SeriesOut]


class BundleOut(BaseModel):
    """Files kept to be sent along with workloads."""

    digest: str
    size_bytes: int


class Problem(BaseModel):
    """RFC 9457. `code` is stable; `detail` says what was asked, what is there, and what to do next."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    retryable: bool = False
    reason: ReasonOut | None = Field(None, description="The same as code and parameters, where there are any.")
    errors: list[dict[str, Any]] | None = None


class AttemptList(BaseModel):
    """All tries of a workload, oldest first."""

    items: list[AttemptOut]


class LogEndOut(BaseModel):
    """The last message of a log's stream: where the workload stands now that there is no more to come."""

    state: StateName
    exit_code: int | None
    reason: ReasonOut
    attempt: int | None = Field(None, description="The number of the try whose output this was.")
