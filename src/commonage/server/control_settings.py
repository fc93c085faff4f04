"""The scheduling rules of control and the planner, from the settings. Called by the bootstrap."""

from __future__ import annotations

from collections.abc import Collection

from commonage.domain.errors import InvalidInput
from commonage.domain.tenants import PRIORITY_CLASSES, PriorityClass, Rules
from commonage.domain.volumes import Volume, VolumeKind, see_that_folders_are_apart
from commonage.engines.containers.daemon.admin_mounts import parse_mount
from commonage.server.settings.settings import Settings


def rules_of(settings: Settings, environments: Collection[str], sites: Collection[str]) -> Rules:
    """The planner's rules. Raises InvalidInput if a tenant names an environment or a site that does not exist."""
    for entry in settings.tenants:
        # Images come and go while the server runs; their names have a slash.
        fixed = [name for name in entry.environments if "/" not in name]
        _there(f"the tenant {entry.name}: environments", fixed, environments)
        _there(f"the tenant {entry.name}: sites", entry.sites, sites)
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
        _there(f"the volume {entry.name}: tenants", entry.tenants, tenants)
        if entry.kind is VolumeKind.DOCKER and settings.engine == "process":
            raise InvalidInput(
                f'the volume {entry.name} is Docker\'s, and workloads are processes here (engine = "process"); '
                'give it a source instead, or set engine = "docker"',
                field="volumes",
            )
    volumes = tuple(entry.volume() for entry in settings.volumes)
    if settings.engine != "process":
        given = (parse_mount(one) for one in settings.docker_mounts)
        places = [(f"the volume {one.name}", one.source, one.writable) for one in volumes if one.source]
        own = [settings.data_dir, *([] if settings.shared_dir is None else [settings.shared_dir])]
        see_that_folders_are_apart(
            [*places, *(("docker_mounts", one.source, one.writable) for one in given)],
            [str(one.absolute()) for one in own],
        )
    return volumes


def _there(what: str, named: Collection[str], there: Collection[str]) -> None:
    missing = next((name for name in named if name not in there), None)
    if missing is not None:
        raise InvalidInput(f"{what}: there is no {missing!r}; there are: {', '.join(sorted(there))}", field="tenants")


def priority_classes_of(settings: Settings) -> tuple[PriorityClass, ...]:
    """All priority classes, lowest first: built-in ones, and those of the settings, which override the same name."""
    found = {one.name: one for one in PRIORITY_CLASSES} | {
        entry.name: entry.priority_class() for entry in settings.priority_classes
    }
    return tuple(sorted(found.values(), key=lambda one: (one.priority, one.name)))
