"""The settings of workloads: environments, defaults and limits, bundles, volumes, homes, and the registry of images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from commonage.control.settings import Limits
from commonage.domain.idle import IdleAction, IdleRule
from commonage.resources.fields import (
    UNIQUE_NAMES,
    DiskMib,
    DiskMibOrZero,
    Mib,
    Milli,
    Seconds,
    SecondsOrZero,
    Takes,
)
from commonage.resources.workloads import EnvironmentEntry, VolumeEntry
from commonage.server.settings.fields import (
    Days,
    IpAddress,
    OptionalText,
    Port,
    host_name,
    no_empty,
    setting,
)
from commonage.wire.hub import docs_page

_DEFAULT = Limits()
_MIN_KEPT_S = 3600
Count = Annotated[int, Field(ge=1, le=10_000_000), Takes("a number from 1")]
BundleCount = Annotated[int, Field(ge=1, le=1_000_000), Takes("a number from 1 to 1000000")]


class WorkloadSettings(BaseModel):
    environments: tuple[EnvironmentEntry, ...] = setting(
        (), "Environments in addition to the built-in ones. An environment with the name of a built-in one replaces it."
    )
    job_environment: str = setting("base", "Environment of a job that names none.", "the name of an environment")
    session_environment: str = setting(
        "notebook", "Environment of a session that names none.", "the name of an environment"
    )
    default_cpus: Milli = setting(1000, "Cores of a workload that requests none.")
    default_memory: Mib = setting(1024, "Memory of a workload that requests none.")
    gpu_over_share: Literal["warn", "stop", "contended"] = setting(
        "contended",
        "Action on a workload that uses more VRAM than its share. Its user is warned in any case. `warn` does "
        "nothing else. `stop` ends it after `gpu_over_share_after`. `contended` ends it as soon as another workload "
        "needs the memory.",
    )
    gpu_over_share_after: Seconds = setting(
        60, "How long a workload may use more VRAM than its share if `gpu_over_share` is `stop`."
    )
    gpu_over_share_tolerance: Mib = setting(
        512,
        "VRAM tolerated above the share, for CUDA contexts: each further process needs one. If measured contexts are "
        "larger, their size is tolerated.",
    )
    class_users: Literal["auto", "create", "existing"] = setting(
        "auto",
        "Students on the roster of a class who never signed in. `create` creates them in JupyterHub, so that their "
        "sessions start before they sign in; with some authenticators, every user who exists in JupyterHub may sign "
        "in. `existing` starts only sessions of users whom JupyterHub knows. `auto` is `create` with the shared "
        "passwords, where a user may sign in under any name, else `existing`.",
    )
    warn_before: Seconds = setting(300, "How long before its time limit a workload is warned.")
    idle_after: SecondsOrZero = setting(
        0,
        "How long a session may be idle before it is stopped or its GPU is released. 0: no limit. Tenants and "
        f"environments may override it ({docs_page('operate/idle')}).",
        "a duration, like 2h, or 0",
    )
    idle_warn: SecondsOrZero = setting(
        600, "How long before the end of `idle_after` the owner of a session is warned.", "a duration, like 10m, or 0"
    )
    idle_action: Literal["stop", "release-gpu"] = setting(
        "stop",
        "Action on an idle session. `stop` ends it. `release-gpu` starts it again without its GPU.",
    )
    max_age: SecondsOrZero = setting(
        0,
        "Longest time that a session may run. It is the time limit of a session that requests none. 0: no limit.",
        "a duration, like 7d, or 0",
    )
    gpu_unused_after: Seconds = setting(
        900, "How long a session may leave its GPU unused while others wait for one, before its owner is notified."
    )

    @property
    def idle_rule(self) -> IdleRule:
        return IdleRule(self.idle_after, self.idle_warn, IdleAction(self.idle_action), self.max_age)


def _long_enough(value: int) -> int:
    if value < _MIN_KEPT_S:
        raise ValueError("less than an hour: users who have sent files need time to submit with them")
    return value


class BundleSettings(BaseModel):
    """Bundles: the files that users send with workloads. Sizes are of packed files."""

    max_bundle: DiskMib = setting(64, "Largest bundle, packed. Put larger data into a volume.")
    bundles_per_user: BundleCount = setting(500, "Bundles that are kept for one user.")
    bundle_space_per_user: DiskMib = setting(2 * 1024, "Disk space for all bundles of one user.")
    bundles_per_tenant: BundleCount = setting(5000, "Bundles that are kept for all members of one tenant.")
    bundle_space_per_tenant: DiskMib = setting(20 * 1024, "Disk space for all bundles of one tenant.")
    keep_bundles: Annotated[Seconds, AfterValidator(_long_enough)] = setting(
        86_400,
        "How long a bundle is kept after its last upload or submission, if no live workload needs it.",
        "a duration of at least an hour, like 1d",
    )


class LimitSettings(BaseModel):
    """Limits of users and tenants. A refusal is HTTP 429 (413 for a body) and names the limit."""

    max_array: Annotated[int, Field(ge=1, le=10_000), Takes("a number from 1 to 10000")] = setting(
        10_000, "Maximum number of workloads in one array."
    )
    max_workloads_per_user: Count = setting(
        _DEFAULT.workloads_per_user,
        "Maximum number of live jobs and services of one user. Each member of an array counts.",
    )
    max_workloads_per_tenant: Count = setting(
        _DEFAULT.workloads_per_tenant,
        "Maximum number of live jobs and services of one tenant. `max_workloads` in a `[[tenants]]` table overrides "
        "it.",
    )
    max_workloads: Count = setting(
        _DEFAULT.workloads, "Maximum number of live workloads of all users. The last tenth is reserved for sessions."
    )
    max_sessions_per_user: Count = setting(_DEFAULT.sessions_per_user, "Maximum number of live sessions of one user.")
    max_streams_per_user: Count = setting(
        _DEFAULT.streams_per_user,
        "Maximum number of event streams and followed logs of one user. Each open page of the portal has one.",
    )
    max_streams: Count = setting(_DEFAULT.streams, "Maximum number of event streams and followed logs of all users.")
    max_commands_per_user: Count = setting(
        _DEFAULT.commands_per_user, "Maximum number of commands (`commonage exec`) that one user runs at the same time."
    )
    max_commands: Count = setting(
        _DEFAULT.commands, "Maximum number of commands (`commonage exec`) that all users run at the same time."
    )
    max_requests_per_second: Annotated[
        float, Field(gt=0, le=1_000_000, allow_inf_nan=False), Takes("a number above 0")
    ] = setting(
        _DEFAULT.requests_per_s,
        "Maximum number of requests per second of one user to the API and the portal. Bursts may be four times as "
        "large.",
    )
    max_failed_sign_ins_per_minute: Count = setting(
        10,
        "Maximum number of failed sign-ins per minute from one address for one user name. For all user names the "
        "limit is five times as high.",
    )
    max_log: Annotated[DiskMib, Field(ge=2)] = setting(
        512,
        "Disk space for the log of one attempt. Of a longer log, the start and the end are kept.",
        "an amount of disk space of at least 2MiB, like 512MiB",
    )

    @property
    def limits(self) -> Limits:
        return Limits(
            workloads_per_user=self.max_workloads_per_user,
            workloads_per_tenant=self.max_workloads_per_tenant,
            sessions_per_user=self.max_sessions_per_user,
            workloads=self.max_workloads,
            streams_per_user=self.max_streams_per_user,
            streams=self.max_streams,
            commands_per_user=self.max_commands_per_user,
            commands=self.max_commands,
            requests_per_s=self.max_requests_per_second,
        )


class StorageSettings(BaseModel):
    volumes: Annotated[tuple[VolumeEntry, ...], UNIQUE_NAMES] = setting(
        (), f"Volumes that workloads may request by name ({docs_page('operate/storage')})."
    )
    disk_reserve: DiskMibOrZero = setting(
        64,
        "Disk space in the data folder that is kept free for sign-in and for sessions in which users delete files. "
        "It is used when the disk is full.",
        "an amount of disk space, like 64MiB, or 0",
    )
    home_quota: Annotated[DiskMib | None, BeforeValidator(no_empty)] = setting(
        None,
        "Maximum disk space of a home. A file system with project quotas enforces it; elsewhere the user of a "
        f"larger home sees a warning. Homes are measured every 10 minutes ({docs_page('operate/storage#homes')}).",
    )


class ImageSettings(BaseModel):
    registry: bool = setting(
        False,
        "Run a registry of images, with TLS and the access rights of the tenants. Needs the program docker-registry "
        f"({docs_page('operate/images')}).",
    )
    registry_bind: IpAddress = setting("127.0.0.1", "Address at which the registry listens.")
    registry_port: Port = setting(5000, "Port of the registry. It is part of the name of each image.")
    registry_host: Annotated[OptionalText, AfterValidator(host_name)] = setting(
        None,
        "Name or address at which all nodes reach the registry. It is part of the name of each image. Default: "
        "`registry_bind`, or this machine's name if the registry listens on all addresses.",
        "a host name or an IPv4 address",
    )
    registry_keep_days: Days = setting(
        14, "Days for which the registry keeps an image that is not, or no longer, in the catalogue."
    )
    prepull: bool = setting(
        True,
        "Pull every image of the catalogue on every node in advance. If false, a node pulls an image at its first use "
        "or on request (`commonage image prepull`).",
    )
