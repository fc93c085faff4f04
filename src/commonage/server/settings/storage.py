"""The settings of storage: volumes, and how large a home may be. A part of `settings`' table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from commonage.domain.errors import InvalidInput
from commonage.domain.volumes import Extent, Volume, VolumeKind, check_volume
from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import Mib, MibOrNone, no_empty
from commonage.wire.docs import docs_page


class VolumeEntry(BaseModel):
    """One `[[volumes]]` table. `mode` is the most that may be asked for: of a folder `ro` if left out, else `rw`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    def _can_be_offered(self) -> VolumeEntry:
        try:
            check_volume(self.volume())
        except InvalidInput as error:
            raise ValueError(error.message) from error
        return self

    def volume(self) -> Volume:
        """The same as the domain has it."""
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


def _once(entries: tuple[VolumeEntry, ...]) -> tuple[VolumeEntry, ...]:
    names = [one.name for one in entries]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"{doubled!r} stands there twice")
    return entries


class StorageSettings(BaseModel):
    """What data there is for workloads, and how much of their own people may keep. Sizes are MiB."""

    volumes: Annotated[tuple[VolumeEntry, ...], AfterValidator(_once)] = setting(
        (),
        f"Data that workloads may ask for by name ({docs_page('operate/storage')}). Only in the file, as `[[volumes]]` "
        "tables with `name`, `title`, `description`, `kind`, `source`, `mode`, `tenants`, `per`, `size`, `memory`, "
        "`always`, `path`.",
        Row("tables [[volumes]] in the file", "Storage"),
    )
    disk_reserve: MibOrNone = setting(
        64,
        "Room in the data folder that is kept for sign-in, and for sessions to delete in, for when the disk is full.",
        Row("an amount of space, like 64MiB, or 0", "Storage"),
    )
    home_quota: Annotated[Mib | None, BeforeValidator(no_empty)] = setting(
        None,
        "How large a home should be. Homes are measured every 10 minutes and a user above the limit sees a warning. "
        f"The limit is not enforced: only a quota of the file system does that ({docs_page('operate/storage#homes')}).",
        Row("an amount of space, like 50GiB", "Storage"),
    )
