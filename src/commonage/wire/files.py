"""Files of homes and volumes: what the API shows and takes, outside of workloads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Name, Strict

PathText = Annotated[str, Field(max_length=4096, description="Path below the home or volume, like `data/train.csv`.")]
VolumeName = Annotated[Name, Field(description="Volume. Empty: your home.")]
TenantName = Annotated[Name | None, Field(description="Needed if each tenant has its own files in the volume.")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class WhereQuery(Strict):
    """Names a file or folder."""

    path: PathText = ""
    volume: VolumeName = ""
    tenant: TenantName = None


class UploadQuery(WhereQuery):
    """Names the file to write, and the upload that becomes it."""

    key: Key = Field(
        description="Chosen by the client, 32 hexadecimal digits. The same key continues with the same upload; "
        "derive it from name, size and time of the file."
    )
    replace: bool = Field(False, description="Replace an existing file. Otherwise it is a conflict.")


class FolderIn(WhereQuery):
    """The folder to create."""


class MoveIn(WhereQuery):
    """A file or folder, and its new path in the same home or volume."""

    to: PathText


class FileOut(BaseModel):
    """One entry of a folder."""

    name: str
    kind: Literal["file", "folder", "link", "other"] = Field(
        description="Links, and `other` (devices, sockets, pipes), can only be used in workloads."
    )
    size_bytes: int
    modified_at: float


class FilePlaceOut(BaseModel):
    """Your home (`volume` is empty), or a volume for one of your tenants."""

    volume: str
    tenant: str = Field(description="The tenant through which you may use the volume.")
    title: str
    writable: bool = Field(description="You may upload to it and change it.")
    gap: ReasonOut | None = Field(description="Why its files cannot be seen here; null if they can.")
    used_mib: int | None = Field(description="Disk usage as last measured; null if it is not measured.")
    left_mib: int | None = Field(description="Space that storage limits leave; null without a limit.")


class FilePlaceList(BaseModel):
    """The places whose files the caller may see."""

    items: list[FilePlaceOut]


class FileList(BaseModel):
    """A folder: folders first, then by name."""

    place: FilePlaceOut
    path: str
    items: list[FileOut]
    left_out: int = Field(
        description="Entries that are not listed: beyond 5000, or with names that are not text. "
        "There may be more in a very large folder."
    )


class UploadOut(BaseModel):
    """An upload so far. `complete`: it has become the file."""

    offset: int
    complete: bool


class FileChangedOut(BaseModel):
    """The path that was created, moved to, or deleted."""

    path: str
