"""The settings of control from those of the server: catalogue, rules, volumes, limits. Called by the bootstrap."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from commonage.catalogue import builtin_environments
from commonage.control.settings import BundleLimits, ControlSettings
from commonage.domain.errors import InvalidInput
from commonage.domain.images import Environment
from commonage.domain.tenants import PRIORITY_CLASSES, PriorityClass, Rules
from commonage.domain.volumes import Volume, VolumeKind, see_that_folders_are_apart
from commonage.engines.settings import parse_mount
from commonage.server.engines import SITE
from commonage.server.settings.settings import Settings


def control_settings(settings: Settings) -> ControlSettings:
    """The settings of control. Raises InvalidInput if a tenant names something that does not exist."""
    return ControlSettings(
        name=settings.name,
        rules=rules_of(settings, [one.name for one in catalogue_of(settings)], [SITE]),
        priority_classes=priority_classes_of(settings),
        default_cpus_milli=settings.default_cpus,
        default_memory_mib=settings.default_memory,
        session_environment=settings.session_environment,
        job_environment=settings.job_environment,
        max_array=settings.max_array,
        port_source_ranges=settings.port_source_ranges if settings.engine == "swarm" else (),
        limits=settings.limits,
        token_lifetime_s=settings.token_lifetime,
        prices=settings.prices,
        volumes=volumes_of(settings, [ControlSettings().default_tenant, *(one.name for one in settings.tenants)]),
        home_quota_mib=settings.home_quota,
        bundles=bundle_limits(settings),
        prepull=settings.prepull,
        warn_before_s=settings.warn_before,
        sample_every_s=settings.sample_every_s,
        gpu_over_share=settings.gpu_over_share,
        gpu_over_share_after_s=settings.gpu_over_share_after,
        gpu_over_share_tolerance_mib=settings.gpu_over_share_tolerance,
    )


def bundle_limits(settings: Settings) -> BundleLimits:
    """The size limits of bundles."""
    return BundleLimits(
        per_user=settings.bundles_per_user,
        per_user_mib=settings.bundle_space_per_user,
        per_tenant=settings.bundles_per_tenant,
        per_tenant_mib=settings.bundle_space_per_tenant,
        keep_s=settings.keep_bundles,
    )


def catalogue_of(settings: Settings) -> list[Environment]:
    """The built-in environments and those of the settings, which override built-in ones of the same name."""
    own = {one.name: one for one in builtin_environments()}
    if settings.engine != "process":  # the image decides its contents
        own = {name: replace(one, image=settings.docker_image, description="") for name, one in own.items()}
    return list((own | {entry.name: entry.entry() for entry in settings.environments}).values())


def without_image(settings: Settings) -> list[Environment]:
    """Environments without an image on an engine with containers. They are not available."""
    return [] if settings.engine == "process" else [one for one in catalogue_of(settings) if one.image is None]


def rules_of(settings: Settings, environments: Collection[str], sites: Collection[str]) -> Rules:
    """The planner's rules. Raises InvalidInput if a tenant names an environment or a site that does not exist."""
    for entry in settings.tenants:
        # Images are pushed and removed while the server runs; their names have a slash.
        fixed = [name for name in entry.environments if "/" not in name]
        _check_names(f"the tenant {entry.name}: environments", fixed, environments)
        _check_names(f"the tenant {entry.name}: sites", entry.sites, sites)
    return Rules(
        tenants=tuple(entry.tenant() for entry in settings.tenants),
        policy=settings.policy,
        site_policy=settings.site_policy.value,
        half_life_s=float(settings.half_life),
        entry_penalty_s=float(settings.entry_penalty),
        age_credit=settings.age_credit,
        guaranteed_s=float(settings.guaranteed_runtime),
        head_of_queue_timeout_s=float(settings.head_of_queue_timeout),
    )


def volumes_of(settings: Settings, tenants: Collection[str]) -> tuple[Volume, ...]:
    """The volumes. Raises InvalidInput if one names a tenant that does not exist, or the engine does not support it.

    A folder that containers write to must not contain a volume: they could replace the volume by a link.
    """
    for entry in settings.volumes:
        _check_names(f"the volume {entry.name}: tenants", entry.tenants, tenants)
        if entry.kind is VolumeKind.DOCKER and settings.engine == "process":
            raise InvalidInput(
                f'Volume {entry.name} is a Docker volume, and workloads are processes here (engine = "process"). '
                'Give it a source instead, or set engine = "docker".',
                field="volumes",
            )
    volumes = tuple(entry.volume() for entry in settings.volumes)
    if settings.engine != "process":
        mounts = (parse_mount(one) for one in settings.docker_mounts)
        places = [(f"the volume {one.name}", one.source, one.writable) for one in volumes if one.source]
        own = [settings.data_dir, *([] if settings.shared_dir is None else [settings.shared_dir])]
        see_that_folders_are_apart(
            [*places, *(("docker_mounts", one.source, one.writable) for one in mounts)],
            [str(one.absolute()) for one in own],
        )
    return volumes


def _check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InvalidInput(f"{what}: {missing!r} does not exist. Known: {', '.join(sorted(known))}.", field="tenants")


def priority_classes_of(settings: Settings) -> tuple[PriorityClass, ...]:
    """All priority classes, lowest first: built-in ones, and those of the settings, which override the same name."""
    found = {one.name: one for one in PRIORITY_CLASSES} | {
        entry.name: entry.priority_class() for entry in settings.priority_classes
    }
    return tuple(sorted(found.values(), key=lambda one: (one.priority, one.name)))
