"""Settings and limits of the control plane, derived from the server's settings (`commonage.server.configure`).

`admission` and `request_limits` enforce the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from commonage.domain.classes import Class
from commonage.domain.idle import DEFAULT_RULE, IdleRule
from commonage.domain.permissions import RoleBinding
from commonage.domain.profiles import Profile
from commonage.domain.resources import NodePool, Platform
from commonage.domain.tenants import PRIORITY_CLASSES, PriorityClass, Rules
from commonage.domain.usage import Prices
from commonage.domain.volumes import Volume


@dataclass(frozen=True, slots=True)
class Limits:
    """Live workloads (those that have not ended; each member of an array counts), long connections, requests.

    `workloads_per_user` and `workloads_per_tenant` count jobs and services. Sessions have a limit of their own, and the
    last tenth of `workloads` is kept for them. `recheck_s`: how often the identity behind a long connection is checked;
    the identity port remembers the hub's answer for half a minute, so the hub is asked no more often than that.
    """

    workloads_per_user: int = 20_000
    workloads_per_tenant: int = 100_000
    sessions_per_user: int = 20
    workloads: int = 200_000
    streams_per_user: int = 50
    streams: int = 2_000
    commands_per_user: int = 10
    commands: int = 500
    requests_per_s: float = 50.0
    failed_tokens_per_s: float = 5.0
    recheck_s: float = 10.0


@dataclass(frozen=True, slots=True)
class BundleLimits:
    per_user: int = 500
    per_user_mib: int = 2 * 1024
    per_tenant: int = 5000
    per_tenant_mib: int = 20 * 1024
    keep_s: int = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended workloads (from their end) and events are kept, in seconds."""

    workloads_s: float = 90 * 86_400.0
    events_s: float = 30 * 86_400.0


@dataclass(slots=True)
class ControlSettings:
    """Defaults and bounds. Durations in seconds, memory in MiB, cpus in thousandths.

    `platform_roles`, `rules`, `priority_classes`, `prices`, `volumes`, `node_pools`, `classes` and `profiles` are
    platform resources: built-in ones at first, then those in force. Only `control.resources` changes them, by
    `declare`; read them where they are used.
    """

    name: str = "Commonage"
    session_origin: str = ""  # for example https://*.hub.example.org; empty if sessions share the origin of the portal
    portal_origin: str = ""  # for example https://hub.example.org; empty if users reach it by any address
    origin_warning: str = ""  # shown to admins on every page of the portal
    default_tenant: str = "commons"
    platform_roles: tuple[RoleBinding, ...] = ()
    rules: Rules = field(default_factory=Rules)
    priority_classes: tuple[PriorityClass, ...] = PRIORITY_CLASSES
    default_cpus_milli: int = 1000
    default_memory_mib: int = 1024
    session_environment: str = "notebook"
    job_environment: str = "base"
    max_array: int = 10_000
    max_name: int = 128
    limits: Limits = field(default_factory=Limits)
    token_lifetime_s: int = 30 * 24 * 3600
    prices: Prices = field(default_factory=Prices)
    volumes: tuple[Volume, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    profiles: tuple[Profile, ...] = ()
    classes: Mapping[str, Class] = field(default_factory=dict)  # by name
    class_users: bool = False  # create users in the hub who are on a roster and never signed in
    bundles: BundleLimits = field(default_factory=BundleLimits)
    retention: Retention = field(default_factory=Retention)
    prepull: bool = True
    home_quota_mib: int | None = None
    warn_before_s: float = 300.0
    idle: IdleRule = DEFAULT_RULE
    gpu_unused_after_s: float = 900.0
    sample_every_s: float = 5.0
    gpu_over_share: str = "contended"
    gpu_over_share_after_s: float = 60.0
    gpu_over_share_tolerance_mib: int = 512
    sweep_every_s: float = 5.0
    node_lost_after_s: float = 30.0
    session_appears_within_s: float = 30.0
    materials_folder: str = ""  # on all nodes of the site; a material's volume is a folder in it
    homes_per_tenant: bool = False  # at the local site: a user has a home in each tenant
    materials_mounted: bool = True  # False: workloads of the local site cannot mount that folder

    @property
    def platform(self) -> Platform:
        """Its platform resources. It knows no environments."""
        return Platform(
            tenants=self.rules.tenants,
            sites=self.rules.sites,
            priority_classes=self.priority_classes,
            volumes=self.volumes,
            node_pools=self.node_pools,
            roles=self.platform_roles,
            classes=tuple(self.classes.values()),
            profiles=self.profiles,
            prices=self.prices,
        )

    def declare(self, platform: Platform) -> None:
        """Put platform resources in force."""
        where = tuple((volume.name, volume.sites) for volume in platform.volumes if volume.sites)
        self.rules = replace(self.rules, tenants=platform.tenants, sites=platform.sites, volume_sites=where)
        self.priority_classes, self.prices = platform.priority_classes, platform.prices
        self.volumes, self.node_pools = tuple(map(self._with_folder, platform.volumes)), platform.node_pools
        self.platform_roles, self.profiles = platform.roles, platform.profiles
        self.classes = {one.name: one for one in platform.classes}

    def _with_folder(self, volume: Volume) -> Volume:
        """A material is a folder that the platform keeps."""
        if volume.material is None:
            return volume
        return replace(volume, source=f"{self.materials_folder}/{volume.name}")
