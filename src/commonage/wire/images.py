"""Images: what was pushed, made from what, and where it lies ready."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.queries import Instant, Name
from commonage.wire.workloads import Argument, KindName, Mib, PlainText, ReasonOut, Strict, VariableName

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Folder = Annotated[PlainText, Field(max_length=255)]


class KernelIn(Strict):
    """A Jupyter kernel of an image."""

    name: Annotated[PlainText, Field(min_length=1, max_length=31)]
    title: Annotated[PlainText, Field(max_length=128)] = ""
    prefix: Folder = Field(
        "", description="The folder of its virtual environment in the image; empty: the image's own Python.",
        examples=["/opt/commonage/kernels/torch"],
    )  # fmt: skip


class SourceFileIn(Strict):
    """A file that it was made from."""

    path: Annotated[PlainText, Field(min_length=1, max_length=512)]
    digest: Digest


class ProvenanceIn(Strict):
    """What it was made from, by what and when. Who says so is known by the token."""

    at: Instant | None = Field(None, description="When it was built, unix seconds.")
    builder: Annotated[PlainText, Field(max_length=128)] = Field("", examples=["buildah 1.28.2"])
    base: Annotated[PlainText, Field(max_length=512)] = Field("", description="The image it stands on.")
    base_digest: Digest | None = None
    files: list[SourceFileIn] = Field(default_factory=list, max_length=200)
    commit: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{7,64})?$")] = Field(
        "", description="The git commit of the files, where they are in a repository."
    )
    dirty: bool = Field(False, description="The files differ from that commit.")


class ImageIn(Strict):
    """An image that was pushed. Under a name that is there it takes the other's place."""

    name: Annotated[PlainText, Field(min_length=1, max_length=96)] = Field(
        description="`TENANT/NAME` or `TENANT/NAME:TAG`; of everybody `public/NAME`.", examples=["lab/torch:2.4"]
    )
    reference: Annotated[PlainText, Field(min_length=1, max_length=512)] = Field(
        description="What nodes fetch: `HOST/REPOSITORY@sha256:…`."
    )
    title: Annotated[PlainText, Field(max_length=128)] = ""
    description: Annotated[PlainText, Field(max_length=1000)] = ""
    size_bytes: int | None = Field(None, ge=0, le=2**50, description="Of its layers, as they are fetched.")
    kinds: list[KindName] | None = Field(
        None,
        max_length=3,
        description="What it is for; jobs and services, and sessions where `server_prefix` is given.",
    )
    kernels: list[KernelIn] = Field(default_factory=list, max_length=32)
    server_prefix: Folder = Field(
        "", description="The folder of the virtual environment that has `jupyterhub-singleuser`."
    )
    path: Annotated[PlainText, Field(max_length=4096)] = Field(
        "", description="The image's own search path (`PATH`); the usual one if left out."
    )
    variables: dict[VariableName, Argument] = Field(default_factory=dict, max_length=100)
    needs_gpu: bool = Field(False, description="Nothing runs in it without a GPU.")
    vram_mib: Mib | None = Field(None, description="The least VRAM it runs with, in MiB.", examples=[6144])
    provenance: ProvenanceIn = Field(default_factory=ProvenanceIn)


class ImageNameIn(Strict):
    """A name under which an image is to be built or pushed."""

    name: Annotated[PlainText, Field(min_length=1, max_length=96)] = Field(examples=["lab/torch:2.4"])


class ImageNameOut(BaseModel):
    """A name under which the caller may push."""

    name: str
    tenant: str | None = Field(description="Whose members may use what is pushed; null: everybody.")
    replaces: bool = Field(description="There is one under this name, whose place it takes.")


class KernelOut(BaseModel):
    """A Jupyter kernel of an image, and the environment in which jobs have its Python."""

    name: str
    title: str
    prefix: str
    environment: str


class SourceFileOut(BaseModel):
    """A file that it was made from."""

    path: str
    digest: str


class ProvenanceOut(BaseModel):
    """What it was made from."""

    by: str
    at: float | None
    builder: str
    base: str
    base_digest: str
    files: list[SourceFileOut]
    commit: str
    dirty: bool


class ImageOnNodeOut(BaseModel):
    """Where an image stands on a node: `absent`, `building` (it is being fetched), `ready`, `failed`."""

    node: str
    state: str
    reason: ReasonOut | None
    progress: float | None = Field(description="0 to 1, while it is fetched and as far as it is known.")


class ImageOut(BaseModel):
    """An image of the catalogue."""

    name: str
    tenant: str | None = Field(description="Whose members may use it; null: everybody.")
    reference: str
    digest: str
    title: str
    description: str
    size_bytes: int | None
    kinds: list[str]
    kernels: list[KernelOut]
    environments: list[str] = Field(description="What workloads name to run in it.")
    needs_gpu: bool
    vram_mib: int = Field(description="The least VRAM it runs with.")
    by: str = Field(description="Who registered it.")
    at: float
    provenance: ProvenanceOut
    nodes: list[ImageOnNodeOut] = Field(description="The nodes it was brought to, or is on its way to.")
    running: int = Field(description="Workloads that hold a node in it.")
    waiting: int = Field(description="Workloads that wait to run in it.")
    mine: bool = Field(description="Whether you may replace and remove it.")


class ImageList(BaseModel):
    """By name."""

    items: list[ImageOut]


class RemovedOut(BaseModel):
    """What became of a removal. Work that runs in it goes on; work that waits for it says so."""

    image: ImageOut
    waiting: list[str] = Field(description="Ids of workloads that wait for it and start only if it comes back.")


class PrepullIn(Strict):
    """Where to bring an image."""

    nodes: list[Name] = Field(default_factory=list, max_length=1024, description="Names; all ready nodes if empty.")
