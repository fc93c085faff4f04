"""Images of the catalogue with their sources and the nodes that have them, and the image registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Argument, Instant, Mib, Name, PlainText, Strict, VariableName
from commonage.wire.workloads import KindName

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Folder = Annotated[PlainText, Field(max_length=255)]


class PackageIn(Strict):
    """A package that is installed in an image."""

    name: Annotated[PlainText, Field(min_length=1, max_length=128)]
    version: Annotated[PlainText, Field(max_length=64)] = ""


class KernelIn(Strict):
    """A Jupyter kernel of an image."""

    name: Annotated[PlainText, Field(min_length=1, max_length=31)]
    title: Annotated[PlainText, Field(max_length=128)] = ""
    prefix: Folder = Field(
        "", description="Folder of its virtual environment in the image; empty: the image's own Python.",
        examples=["/opt/commonage/kernels/torch"],
    )  # fmt: skip
    packages: list[PackageIn] = Field(default_factory=list, max_length=2000, description="Its packages, by name.")


class SourceFileIn(Strict):
    """A source file of the image, and the digest of its content."""

    path: Annotated[PlainText, Field(min_length=1, max_length=512)]
    digest: Digest


class ProvenanceIn(Strict):
    """Sources, build tool and build time of an image. The server adds the user from the token."""

    at: Instant | None = Field(None, description="Build time, unix seconds.")
    builder: Annotated[PlainText, Field(max_length=128)] = Field("", examples=["buildah 1.28.2"])
    base: Annotated[PlainText, Field(max_length=512)] = Field("", description="Base image.")
    base_digest: Digest | None = None
    files: list[SourceFileIn] = Field(default_factory=list, max_length=200)
    commit: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{7,64})?$")] = Field(
        "", description="Git commit of the files, if they are in a repository."
    )
    dirty: bool = Field(False, description="The files differ from that commit.")


class ImageIn(Strict):
    """A pushed image to register. It replaces an existing image of the same name."""

    name: Annotated[PlainText, Field(min_length=1, max_length=96)] = Field(
        description="`TENANT/NAME` or `TENANT/NAME:TAG`; `public/NAME` for all users.", examples=["lab/torch:2.4"]
    )
    reference: Annotated[PlainText, Field(min_length=1, max_length=512)] = Field(
        description="Reference that nodes pull: `HOST/REPOSITORY@sha256:…`."
    )
    title: Annotated[PlainText, Field(max_length=128)] = ""
    description: Annotated[PlainText, Field(max_length=1000)] = ""
    size_bytes: int | None = Field(None, ge=0, le=2**50, description="Compressed size of its layers.")
    kinds: list[KindName] | None = Field(
        None,
        max_length=3,
        description="Kinds of workloads. Default: jobs and services, and sessions if `server_prefix` is set.",
    )
    kernels: list[KernelIn] = Field(default_factory=list, max_length=32)
    server_prefix: Folder = Field(
        "", description="Folder of the virtual environment that contains `jupyterhub-singleuser`."
    )
    path: Annotated[PlainText, Field(max_length=4096)] = Field(
        "", description="The image's own search path (`PATH`). Default: the one of Debian."
    )
    variables: dict[VariableName, Argument] = Field(default_factory=dict, max_length=100)
    needs_gpu: bool = Field(False, description="It requires a GPU.")
    vram_mib: Mib | None = Field(None, description="The least VRAM it requires, in MiB.", examples=[6144])
    apps: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,40}$")]] = Field(
        default_factory=list, max_length=32, description="Apps that its sessions offer.", examples=[["tensorboard"]]
    )
    provenance: ProvenanceIn = Field(default_factory=ProvenanceIn)


class ImageNameIn(Strict):
    """A name under which you want to build or push an image."""

    name: Annotated[PlainText, Field(min_length=1, max_length=96)] = Field(examples=["lab/torch:2.4"])


class ImageNameOut(BaseModel):
    """A name under which the caller may push an image."""

    name: str
    tenant: str | None = Field(description="Only members of this tenant may use the image; null: everyone.")
    replaces: bool = Field(description="It would replace an existing image of this name.")


class KernelOut(BaseModel):
    """A Jupyter kernel of an image, and the environment in which jobs use its Python."""

    name: str
    title: str
    prefix: str
    environment: str


class SourceFileOut(BaseModel):
    """A source file of the image, and the digest of its content."""

    path: str
    digest: str


class ProvenanceOut(BaseModel):
    """Sources, build tool, build time and builder (`by`) of an image."""

    by: str
    at: float | None
    builder: str
    base: str
    base_digest: str
    files: list[SourceFileOut]
    commit: str
    dirty: bool


class ImageOnNodeOut(BaseModel):
    """State of an image on a node: `absent`, `building` (it is being pulled), `ready`, `failed`."""

    site: str
    node: str
    state: str
    reason: ReasonOut | None
    progress: float | None = Field(description="Progress of the pull, 0 to 1; null if unknown.")


class ImageOut(BaseModel):
    """An image of the catalogue."""

    name: str
    tenant: str | None = Field(description="Only members of this tenant may use it; null: everyone.")
    reference: str
    digest: str
    title: str
    description: str
    size_bytes: int | None
    kinds: list[str]
    kernels: list[KernelOut]
    apps: list[str] = Field(default_factory=list, description="Apps that it has.")
    environments: list[str] = Field(description="Names of its environments, which workloads use.")
    needs_gpu: bool
    vram_mib: int = Field(description="The least VRAM it requires, in MiB.")
    by: str = Field(description="The user who registered it.")
    at: float
    provenance: ProvenanceOut
    nodes: list[ImageOnNodeOut] = Field(description="Nodes that have it or pull it.")
    running: int = Field(description="Number of workloads that run in it.")
    waiting: int = Field(description="Number of workloads that wait to run in it.")
    mine: bool = Field(description="You may replace and remove it.")


class ImageList(BaseModel):
    """Images, by name."""

    items: list[ImageOut]


class RemovedOut(BaseModel):
    """The removed image. Workloads that run in it continue; waiting ones are held."""

    image: ImageOut
    waiting: list[str] = Field(description="Ids of waiting workloads, which start only if it is registered again.")


class PrepullIn(Strict):
    """The nodes that pull the image."""

    nodes: list[Name] = Field(
        default_factory=list,
        max_length=1024,
        description="Names of nodes, as NAME or SITE/NAME. Default: all ready nodes.",
    )


class RegistryOut(BaseModel):
    """The site's image registry."""

    address: str = Field(
        description="`HOST:PORT`, the first part of the names of its images.", examples=["hub.example.org:5000"]
    )
    certificate: str = Field(description="Certificate of its certificate authority, PEM.")


class RegistryTokenOut(BaseModel):
    """A token of the registry, with the field names of the registry protocol."""

    token: str
    access_token: str = Field(description="The same as `token`.")
    expires_in: int = Field(description="Lifetime in seconds.")
    issued_at: str = Field(description="Time of issue, RFC 3339.")


class CollectedOut(BaseModel):
    """Images that were deleted from the registry."""

    images: list[str]
    freed_bytes: int
