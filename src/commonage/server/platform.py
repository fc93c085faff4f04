"""Platform resources on this server: what its settings file declares, and what its engine and clouds support."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from commonage.catalogue import builder_environment, builtin_environments
from commonage.clouds import LibcloudMachines, driver_of
from commonage.control.settings import ControlSettings
from commonage.domain.errors import InvalidInput
from commonage.domain.images import Environment
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.resources import Document, NodePool, Platform, StoredResource
from commonage.domain.volumes import Volume, VolumeKind, see_that_folders_are_apart
from commonage.engines.settings import parse_mount
from commonage.ports.clouds import Cloud
from commonage.ports.platform import PlatformSupport
from commonage.resources.documents import Forms, body_of, form_of
from commonage.resources.fields import Form
from commonage.resources.platform import check_references, platform_of
from commonage.resources.scheduling import PlatformRoleEntry, PricesEntry
from commonage.resources.workloads import KUBERNETES
from commonage.server.settings.nodes import rental_of
from commonage.server.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class LocalSupport(PlatformSupport):
    """`cluster`: the cloud of a node pool of this server's cluster; None if its engine is another."""

    settings: Settings
    cluster: Callable[[NodePool], Cloud] | None = None

    def offers(self, environment: Environment) -> bool:
        """On an engine with containers, an environment needs an image."""
        return self.settings.engine == "process" or environment.image is not None

    def check(self, platform: Platform) -> None:
        """Raises InvalidInput for a volume that the engine does not support, and for an unknown provider.

        A folder that containers write to must not contain a volume: they could replace the volume by a link.
        """
        for pool in platform.node_pools:
            if pool.provider != KUBERNETES:
                driver_of(rental_of(pool))
            elif self.settings.engine != "kubernetes":
                raise InvalidInput(
                    f"The node pool {pool.policy.name} belongs to a cluster, and this server's engine is "
                    f'{self.settings.engine}. Set engine = "kubernetes", or name a cloud as its provider.',
                    field="provider",
                )
        if self.settings.engine == "process":
            _check_process_volumes(platform.volumes)
        else:
            self._check_folders(platform.volumes)

    def _check_folders(self, volumes: Sequence[Volume]) -> None:
        settings = self.settings
        mounts = (parse_mount(one) for one in settings.docker_mounts)
        places = [(f"the volume {one.name}", one.source, one.writable) for one in volumes if one.source]
        own = [settings.data_dir, *([] if settings.shared_dir is None else [settings.shared_dir])]
        see_that_folders_are_apart(
            [*places, *(("docker_mounts", one.source, one.writable) for one in mounts)],
            [str(one.absolute()) for one in own],
        )

    def cloud(self, pool: NodePool) -> Cloud:
        if pool.provider == KUBERNETES and self.cluster is not None:
            return self.cluster(pool)
        return LibcloudMachines(rental_of(pool))


def _check_process_volumes(volumes: Sequence[Volume]) -> None:
    for volume in volumes:
        if volume.kind is VolumeKind.DOCKER:
            raise InvalidInput(
                f'Volume {volume.name} is a Docker volume, and workloads are processes here (engine = "process"). '
                'Give it a source instead, or set engine = "docker".',
                field="volumes",
            )


def builtin_of(settings: Settings) -> list[Environment]:
    """The built-in environments."""
    own = list(builtin_environments())
    if settings.engine == "process":
        return [*own, builder_environment(sys.executable)]
    # The image decides its contents.
    return [replace(one, image=settings.docker_image, description="") for one in own]


def _forms(settings: Settings) -> Forms:
    prices = [settings.prices] if settings.prices != PricesEntry() else []
    tables: dict[str, Sequence[Form]] = {
        "PlatformRole": _platform_roles(settings),
        "Prices": prices,
        "PriorityClass": settings.priority_classes,
        "Environment": settings.environments,
        "Tenant": settings.tenants,
        "Volume": settings.volumes,
        "NodePool": settings.node_pools,
    }
    return {(kind, one.name): one for kind, entries in tables.items() for one in entries}


def _platform_roles(settings: Settings) -> list[PlatformRoleEntry]:
    """One resource for each role. In the settings file, each table is one user or group."""
    found = []
    for role in dict.fromkeys(one.role for one in settings.platform_roles):
        bound = [one for one in settings.platform_roles if one.role == role]
        users, groups = [one.user for one in bound if one.user], [one.group for one in bound if one.group]
        found.append(PlatformRoleEntry(name=role, users=tuple(users), groups=tuple(groups)))
    return found


def declared_platform(settings: Settings) -> Platform:
    """The built-in resources, and those of the settings file. Raises InvalidInput if they do not fit together."""
    forms = _forms(settings)
    platform = platform_of(forms, Platform(environments=tuple(builtin_of(settings))))
    check_references(forms, platform, [LOCAL_SITE], ControlSettings().default_tenant)
    LocalSupport(settings).check(platform)
    return platform


def declared_of(settings: Settings) -> Mapping[str, Sequence[Document]]:
    """The resources of the settings file, by kind. Raises InvalidInput if they do not fit together."""
    declared_platform(settings)
    found: dict[str, list[Document]] = {}
    for (kind, name), form in _forms(settings).items():
        found.setdefault(kind, []).append(StoredResource(kind, name, 0, body_of(form)).document)
    return found


def stored_platform(settings: Settings, stored: Sequence[StoredResource]) -> Platform:
    """The resources in force on a server with this database. Kinds that it never had come from the settings file."""
    there = {one.kind for one in stored}
    forms = {key: form for key, form in _forms(settings).items() if key[0] not in there}
    forms |= {one.key: form_of(one) for one in stored if one.body is not None}
    return platform_of(forms, Platform(environments=tuple(builtin_of(settings))))
