"""Each noun is described once: messages have the fields of their source classes, except for declared differences."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pkgutil import iter_modules

import pytest
from pydantic import BaseModel

from commonage import wire
from commonage.control.catalogue.images import ImageView
from commonage.control.catalogue.prepulls import OnNode
from commonage.control.classes.classes import ClassView, Seat
from commonage.control.files import PlaceView
from commonage.control.offboarding.offboardings import UserView
from commonage.control.offboarding.plans import OffboardingPlan
from commonage.control.queries.launch import GpuChoice, LaunchView, VolumeView
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.control.queries.workloads import StateDetails
from commonage.control.tenants import TenantView
from commonage.control.usage.attribution import UnattributedProcess
from commonage.control.usage.homes import HomeView
from commonage.control.workloads.submission import Submission
from commonage.domain.classes import Announcement, Class, ClassMeeting, Consent
from commonage.domain.cron_jobs import CronJob, CronRule
from commonage.domain.explanations import Explanation, Holder, JobsAhead, SiteChoice
from commonage.domain.files import Entry
from commonage.domain.images import (
    Contents,
    Environment,
    EnvironmentStatus,
    Image,
    Kernel,
    Package,
    Provenance,
    SourceFile,
)
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import Device, MachineKind, Node, NodePoolPolicy, NodePoolView, NodeReport, Share
from commonage.domain.offboarding import Offboarding, Wanted
from commonage.domain.profiles import Profile
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.requests import Request
from commonage.domain.resources import FieldChange, GitSource, ResourceChange, StoredResource
from commonage.domain.statuses import LogLine
from commonage.domain.tenants import Amounts, Bounds, Quota, Reservation, Tenant
from commonage.domain.usage import Suggestion, Usage, UsageFigures, UsageReport
from commonage.domain.volumes import Volume
from commonage.domain.workloads import Attempt, Event, Spec, Workload
from commonage.ports.devices import DeviceSample
from commonage.ports.joining import JoinKit, JoinToken
from commonage.ports.metrics import Point
from commonage.ports.registry import Collected, RegistryAbout
from commonage.ports.sites import SiteToken, SiteView
from commonage.wire import (
    classes,
    cron_jobs,
    environments,
    events,
    files,
    images,
    nodes,
    offboarding,
    reasons,
    resources,
    sites,
    tenants,
    usage,
    workloads,
)

MODULES = [import_module(one.name) for one in iter_modules(wire.__path__, "commonage.wire.")]


@dataclass(frozen=True)
class Description:
    """Sources of a message, its own fields (made by a route), and source fields that it does not show."""

    sources: tuple[type, ...]
    own: str = ""
    hidden: str = ""


DESCRIPTIONS: dict[type[BaseModel], Description] = {
    classes.AnnouncementOut: Description((Announcement,)),
    classes.ClassOut: Description(
        (ClassView, Class),
        own="seat_count version session_url document",
        hidden="one resource session users groups",
    ),
    classes.ConsentOut: Description((Consent,)),
    classes.MeetingOut: Description((ClassMeeting,), hidden="id class_name warned over"),
    classes.SeatOut: Description((Seat,), own="workload_id", hidden="workload"),
    cron_jobs.CronJobOut: Description(
        (CronJob, Spec, CronRule),
        own="next_times reason active",
        hidden="spec rule decided_until last_refused groups of_admin kind variables secrets dropped_secrets priority "
        "time_limit_s grace_s retry depends_on bundle array_id array_size key preemptible volumes gang requeue "
        "cron_job due_at near port health_path health_interval_s build class_meeting traceparent site removed",
    ),
    cron_jobs.CronRuleIn: Description((CronRule,)),
    environments.EnvironmentOut: Description(
        (Environment, Contents, EnvironmentStatus),
        own="vram_mib",
        hidden="python variables min_vram_mib idle site contents",
    ),
    environments.KernelContentsOut: Description((Kernel,), hidden="prefix"),
    environments.PackageOut: Description((Package,)),
    environments.LaunchOptions: Description((LaunchView,), own="volumes priorities notices", hidden="priority_classes"),
    environments.ProfileChoice: Description((Profile,), own="cpus on", hidden="cpus_milli labels tenants order"),
    environments.SizeChoice: Description((GpuChoice,)),
    environments.TenantChoice: Description(
        (Tenant,), hidden="weight quota sites environments max_workloads members site_policy idle own_packages"
    ),
    events.EventOut: Description((Event,), hidden="tenant"),
    events.LogLineOut: Description((LogLine,)),
    events.PointOut: Description((Point,)),
    images.CollectedOut: Description((Collected,)),
    images.ImageOnNodeOut: Description((OnNode,)),
    images.ImageOut: Description(
        (ImageView, Image),
        own="environments vram_mib",
        hidden="image server_prefix path variables min_vram_mib removed",
    ),
    images.KernelOut: Description((Kernel,), own="environment", hidden="packages"),
    images.ProvenanceOut: Description((Provenance,)),
    images.RegistryOut: Description((RegistryAbout,)),
    images.SourceFileOut: Description((SourceFile,)),
    nodes.JoinKitOut: Description((JoinKit,)),
    nodes.JoinTokenOut: Description((JoinToken,), own="script_sha256 user_data"),
    nodes.DeviceOut: Description(
        (DeviceView, Device),
        own="measured",
        hidden="device holders sample parent_memory_mib context_mib",
    ),
    nodes.MeasuredOut: Description((DeviceSample,), hidden="uuid memory_used_mib utilisation processes"),
    nodes.NodeUsageOut: Description((NodeUsage,)),
    nodes.NodeOut: Description(
        (NodeView, Node, NodeReport),
        hidden="node report drained_by disk_free_mib faults disk_pressure gone awaits_admin",
    ),
    nodes.NodePoolOut: Description(
        (NodePoolView, NodePoolPolicy, MachineKind),
        own="min max cpus nodes reason currency",
        hidden="policy kind site engine least most wait_s join_s join_options labels cpus_milli machines why",
    ),
    nodes.UnattributedProcessOut: Description((UnattributedProcess,)),
    reasons.ReasonOut: Description((Reason,), own="params message"),
    resources.FieldChangeOut: Description((FieldChange,)),
    resources.GitSourceOut: Description((GitSource,)),
    resources.ResourceChangeOut: Description((ResourceChange,), own="affected refusal"),
    resources.ResourceOut: Description((StoredResource,), hidden="body"),
    offboarding.OffboardingOut: Description((Offboarding,)),
    offboarding.OffboardingPlanOut: Description((OffboardingPlan,)),
    offboarding.UserOut: Description((UserView,)),
    offboarding.WantedOut: Description((Wanted,)),
    sites.SiteOut: Description((SiteView,)),
    sites.SiteTokenOut: Description((SiteToken,)),
    tenants.AmountsOut: Description((Amounts,)),
    tenants.BoundsOut: Description((Bounds,)),
    tenants.QuotaOut: Description((QuotaUse,), own="text"),
    tenants.ReservationOut: Description((Reservation,), own="reason"),
    tenants.TenantOut: Description(
        (TenantView, Tenant, Quota), own="quotas", hidden="tenant quota max_workloads members idle own_packages"
    ),
    usage.SuggestionOut: Description((Suggestion,)),
    usage.UsageReportOut: Description(
        (UsageReport, UsageFigures),
        own="final summary gpu_idle_share",
        hidden="attempt_id workload_id owner command_hash began_at ended_at device_mib gpu_milli whole figures "
        "memory_mib_s vram_s vram_mib_s gpu_s gpu_busy_s gpu_idle_s energy_s energy_j",
    ),
    usage.UsageRow: Description((Usage,), own="cost"),
    environments.HomeOut: Description((HomeView,), own="over measured_at text", hidden="at"),
    environments.VolumeOut: Description(
        (VolumeView, Volume), own="in_memory", hidden="volume source per target memory material"
    ),
    files.FileOut: Description((Entry,)),
    files.FilePlaceOut: Description((PlaceView,)),
    workloads.AttemptOut: Description(
        (Attempt,), own="site node shares allocated_at", hidden="workload_id allocation url"
    ),
    workloads.ExplanationOut: Description((Explanation,), own="state summary suggestion", hidden="at is_queued"),
    workloads.HolderOut: Description((Holder,), own="text", hidden="tenant"),
    workloads.JobsAheadOut: Description((JobsAhead,), own="text"),
    workloads.RequestOut: Description((Request,), own="gpus text on", hidden="gpu labels on_full_disk sites"),
    workloads.SiteChoiceOut: Description((SiteChoice,), own="text"),
    workloads.ShareOut: Description((Share,), own="device index", hidden="device_uuid device_index device_memory_mib"),
    workloads.SubmitIn: Description(
        (Submission,),
        own="cpus gpus retries backoff_s array nodes on",
        hidden="cpus_milli gpu retry array_size gang labels",
    ),
    workloads.WorkloadOut: Description(
        (Workload, Spec, StateDetails),
        own="started_at ended_at exit_code site node shares retries stopping url usage_report internal_url",
        hidden="spec stop attempt not_before warned idle_warned_at retried version secrets dropped_secrets retry build "
        "class_meeting traceparent",
    ),
}
# Messages without a class of the domain: envelopes (lists, pages), queries, requests with their own form.
ENVELOPES = ("List", "Page", "Query")
WITHOUT_SOURCE = {
    "MaterialAccessOut", "MaterialCopyOut", "MaterialOut", "MaterialTokenIn", "ResetIn",
    "AskIn", "ClassIn", "ClassMessageIn", "ConsentIn",
    "FileChangedOut", "FolderIn", "MoveIn", "UploadOut",
    "ActivityIn", "ActivityOut", "ExtendIn", "NoticeOut",
    "EnvironmentBuildIn", "EnvironmentDetailsOut", "PackageIn",
    "OpenedOut", "VisitorIn", "VisitorsIn", "VisitorsOut",
    "AffectedOut", "AffectedWorkloadOut", "ApplyIn", "BundleOut", "CronJobIn", "DependencyIn", "DoneOut", "ExecIn",
    "ExportOut", "FromCommand", "GitSourceIn", "HealthOut", "HubSettings", "ImageIn", "ImageNameIn", "ImageNameOut",
    "InfoOut", "JoinTokenIn", "KernelIn", "LogEndOut", "MetricsOut", "OffboardingIn",
    "OffboardingPlanIn", "PeerOut", "PlanIn", "PlanOut", "PoolNodeOut",
    "PrepullIn", "Problem", "ProvenanceIn", "RegistryTokenOut", "RemovedOut", "ReservationIn", "ReservedOut",
    "ResourceIn", "SeriesOut", "SiteTokenIn", "SizeIn", "SourceFileIn", "StopIn", "Strict", "SubmitOut",
    "TerminalIn", "ToCommand", "TriggerIn", "TriggeredOut", "TokenIn", "TokenOut", "UnavailableOut", "UsageOut",
}  # fmt: skip


def readable(source: type) -> set[str]:
    """Names that `fill` reads from an object of this class."""
    properties = {name for name, _ in inspect.getmembers(source, lambda value: isinstance(value, property))}
    return (
        properties
        | ({field.name for field in fields(source)} if is_dataclass(source) else set())
        | ({"code"} if source is Reason else set())
    )


@pytest.mark.parametrize("model", DESCRIPTIONS, ids=lambda model: model.__name__)
def test_every_field_comes_from_a_source_or_is_declared(model: type[BaseModel]) -> None:
    description = DESCRIPTIONS[model]
    own, shown = set(description.own.split()), set(model.model_fields)
    available = set().union(*map(readable, description.sources))
    assert shown - available == own, "fields that a route makes itself"


@pytest.mark.parametrize("model", DESCRIPTIONS, ids=lambda model: model.__name__)
def test_every_field_of_a_source_is_shown_or_declared_hidden(model: type[BaseModel]) -> None:
    description = DESCRIPTIONS[model]
    stored = {field.name for source in description.sources if is_dataclass(source) for field in fields(source)}
    assert stored - set(model.model_fields) == set(description.hidden.split())


def test_every_message_has_a_source_or_a_reason_for_none() -> None:
    messages = {
        model
        for module in MODULES
        for model in vars(module).values()
        if inspect.isclass(model) and issubclass(model, BaseModel) and model.__module__ == module.__name__
    }
    others = {model.__name__ for model in messages - set(DESCRIPTIONS) if not model.__name__.endswith(ENVELOPES)}
    assert others == WITHOUT_SOURCE
