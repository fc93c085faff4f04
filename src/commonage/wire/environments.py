"""Environments and volumes of the catalogue, and the options for a new workload."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import Cpus, Mib, Name, PlainText, Strict


class EnvironmentOut(BaseModel):
    """A catalogue entry and its state."""

    name: str
    title: str
    description: str
    kinds: list[str]
    requirements: list[str]
    state: str
    reason: ReasonOut | None
    progress: float | None
    image: str | None = Field(None, description="Its image, unless it is a Python environment.")
    tenant: str | None = Field(None, description="Only members of this tenant may use it; null: everyone.")
    needs_gpu: bool = Field(False, description="It requires a GPU.")
    vram_mib: int = Field(0, description="The least VRAM it requires, in MiB.")
    kernels: list[str] = Field(default_factory=list, description="Names of its Jupyter kernels, if they are known.")
    apps: list[str] = Field(default_factory=list, description="Apps that its sessions offer, like `tensorboard`.")
    size_bytes: int | None = Field(None, description="Size of its files; of an image that of its layers, compressed.")
    built_at: float | None = Field(None, description="Time at which it was built, unix seconds; null if unknown.")
    built_by: str | None = Field(None, description="Id of the workload that built it, if it was built here.")


class EnvironmentList(BaseModel):
    """The environments of the catalogue."""

    items: list[EnvironmentOut]


class PackageOut(BaseModel):
    """An installed package."""

    name: str
    version: str


class KernelContentsOut(BaseModel):
    """A Jupyter kernel and its packages."""

    name: str
    title: str
    packages: list[PackageOut]


class EnvironmentDetailsOut(BaseModel):
    """An environment and its contents. Those of a Python environment are known once it was made."""

    environment: EnvironmentOut
    kernels: list[KernelContentsOut]
    may_change: bool = Field(description="You may build it again, and remove it.")


class EnvironmentBuildIn(Strict):
    """An environment of a tenant to build. It replaces an environment of the same name that was built before."""

    name: Annotated[PlainText, Field(min_length=1, max_length=96)] = Field(
        description="`TENANT/NAME`.", examples=["lab/nlp"]
    )
    source: Literal["requirements", "environment", "pyproject", "containerfile", "git", "image"] = Field(
        description="Source of the build: the text of a requirements.txt, environment.yml, pyproject.toml or "
        "Containerfile, a git repository with one of them, or an image."
    )
    text: Annotated[str, Field(max_length=48 * 1024)] = Field("", description="Content of the file.")
    url: Annotated[PlainText, Field(max_length=1000)] = Field(
        "", description="`https://` address of the git repository, or the name of the image."
    )
    ref: Annotated[PlainText, Field(max_length=200)] = Field("", description="Branch or tag of the repository.")
    bundle: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="Digest of uploaded files that a Containerfile copies, from POST /bundles."
    )
    title: Annotated[PlainText, Field(max_length=128)] = ""
    description: Annotated[PlainText, Field(max_length=500)] = ""
    cpus: Cpus | None = Field(None, description="Number of CPUs (cores) of the build.")
    memory_mib: Mib | None = Field(None, description="Memory of the build in MiB.")


class VolumeOut(BaseModel):
    """A volume that the caller may mount."""

    name: str
    title: str
    description: str
    kind: Literal["folder", "docker", "scratch"] = Field(
        description="`folder`: the same on all nodes; `docker`: separate on each node; `scratch`: deleted with the "
        "attempt that uses it."
    )
    writable: bool = Field(description="It may be mounted read-write (`rw`).")
    writers: Literal["everybody", "managers"] = Field(
        "everybody", description="Users who may mount it read-write: all who may use it, or managers of a tenant."
    )
    used_mib: int | None = Field(
        None, description="Disk usage of the caller's folders in it, if it has such; null before it is measured."
    )
    always: bool = Field(description="It is mounted in every workload without a request.")
    size_mib: int | None = Field(description="Its size limit; null for no limit.")
    in_memory: bool = Field(description="Its content is in memory and counts as memory of the workload.")
    tenants: list[str] = Field(description="The caller's tenants that may use it.")
    place: str = Field(description="Mount path in the workload.")
    bounded_on: list[str] = Field(
        default_factory=list, description="Nodes that enforce its size; empty if it has no size limit."
    )
    unbounded_on: list[str] = Field(default_factory=list, description="Nodes that do not enforce its size.")
    sites: list[str] | None = Field(
        None, description="Sites where it is, of those that you may see; null: all. Workloads that use it run there."
    )
    notes: list[ReasonOut] = Field(description="Limitations on this installation.")


class HomeOut(BaseModel):
    """The caller's home folder, which all of the caller's workloads at a site share; of several sites the largest."""

    used_mib: int
    quota_mib: int | None = Field(description="Quota; null for none.")
    over: bool = Field(description="It exceeds its quota.")
    enforced: bool = Field(description="Whether the file system enforces the quota.")
    site: str = Field("", description="Site of the home; empty for the control plane's own.")
    measured_at: float
    text: str


class VolumeList(BaseModel):
    """The volumes that the caller may mount."""

    items: list[VolumeOut]
    home: HomeOut | None = Field(None, description="Null until the first measurement; measured every ten minutes.")


class SizeChoice(BaseModel):
    """A GPU share that can be requested, and whether it could start now."""

    gpus: str
    title: str
    free_now: bool
    why_not: ReasonOut | None


class TenantChoice(BaseModel):
    """A tenant for which the user may submit workloads."""

    name: str
    title: str


class ProfileChoice(BaseModel):
    """Options that fill the launch form with one click, as a submission takes them; null: the default."""

    name: str
    title: str
    description: str
    environment: str | None
    cpus: float | None
    memory_mib: int | None
    gpus: str | None
    on: dict[str, str] = Field(description="Labels that the node must carry.")


class LaunchOptions(BaseModel):
    """The options for a new workload of the user, and the resources that are free now."""

    environments: list[EnvironmentOut]
    gpu_choices: list[SizeChoice]
    models: list[str]
    max_cpus_milli: int
    max_memory_mib: int
    max_vram_mib: int
    free_cpus_milli: int
    free_memory_mib: int
    simulated_gpus: bool
    tenants: list[TenantChoice] = Field(
        default_factory=list, description="Tenants for which the user may submit workloads."
    )
    volumes: list[VolumeOut] = Field(default_factory=list, description="Volumes that the user may mount.")
    priorities: list[str] = Field(
        default_factory=list, description="Names of the priority classes that the user may request."
    )
    profiles: list[ProfileChoice] = Field(
        default_factory=list, description="Launch profiles that the user may use, in the order in which they are shown."
    )
    notices: list[ReasonOut] = Field(
        default_factory=list, description="Sessions of the user that ended with their node, and similar notices."
    )


class LaunchQuery(Strict):
    """Selects the user."""

    user: Name | None = Field(None, description="The options of this user; for admins and the hub. Default: yourself.")
    group: list[Name] = Field(default_factory=list, description="Groups of that user; repeat the parameter.")
