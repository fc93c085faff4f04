"""The settings of storage: volumes, homes, and the registry of images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from commonage.domain.volumes import Extent, Volume, VolumeKind, check_volume
from commonage.server.settings.fields import (
    UNIQUE_NAMES,
    Days,
    DiskMib,
    DiskMibOrZero,
    Entry,
    IpAddress,
    Mib,
    OptionalText,
    Port,
    check_domain,
    host_name,
    no_empty,
    setting,
)
from commonage.wire.hub import docs_page


class VolumeEntry(Entry):
    """One `[[volumes]]` table. `mode` is the most that may be requested; by default `ro` for folders, else `rw`."""

    name: str
    title: Annotated[str, Field(max_length=128)] = ""
    description: Annotated[str, Field(max_length=500)] = ""
    kind: VolumeKind = VolumeKind.FOLDER
    source: str = ""
    mode: Literal["ro", "rw"] | None = None
    tenants: tuple[str, ...] = ()
    per: Extent = Extent.ALL
    size: Mib | None = None
    memory: bool = False
    always: bool = False
    path: str = ""

    @model_validator(mode="after")
    def _check(self) -> VolumeEntry:
        check_domain(lambda: check_volume(self.volume()))
        return self

    def volume(self) -> Volume:
        """The volume in the form of the domain."""
        return Volume(
            name=self.name,
            title=self.title or self.name,
            description=self.description,
            kind=self.kind,
            source=self.source,
            writable=self.mode == "rw" if self.mode else self.kind is not VolumeKind.FOLDER,
            tenants=self.tenants,
            per=self.per,
            size_mib=self.size,
            memory=self.memory,
            always=self.always,
            target=self.path,
        )


class StorageSettings(BaseModel):
    """Volumes for workloads, and the size of homes."""

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
        "Size of a home above which its user sees a warning. Homes are measured every 10 minutes. The limit is not "
        f"enforced: for that, use a quota of the file system ({docs_page('operate/storage#homes')}).",
    )


class ImageSettings(BaseModel):
    """The registry of images that are built on this site."""

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
