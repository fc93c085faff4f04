"""The forms of environments, volumes, profiles and node pools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from commonage.domain.builds import BUILDER
from commonage.domain.images import Environment, PythonKernel
from commonage.domain.materials import Material
from commonage.domain.nodes import LOCAL_SITE, MachineKind, NodePoolPolicy
from commonage.domain.profiles import Profile
from commonage.domain.requests import parse_gpus
from commonage.domain.resources import NodePool
from commonage.domain.volumes import Extent, Volume, VolumeKind, Writers, check_volume
from commonage.domain.workloads import Kind
from commonage.resources.fields import Entry, Form, Labels, Mib, MibOrZero, Milli, Seconds, SecondsOrZero, check_domain
from commonage.resources.idle import MAX_AGE, IdleEntry, idle_rule

KernelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,30}$")]


class EnvironmentEntry(Form):
    """An entry of the catalogue that workloads run in."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,31})?$")] = Field(
        description="Name of the environment, or TENANT/NAME. The name of a built-in one replaces it."
    )
    title: str = Field("", description="Name as it is shown.")
    description: str = Field("", description="One or two sentences for users.")
    requirements: tuple[str, ...] = Field((), description="Python packages, each as in a requirements file.")
    python: str | None = Field(None, description="Path of an existing Python interpreter, instead of requirements.")
    image: str | None = Field(None, description="Container image, for engines that run containers.")
    kinds: tuple[Kind, ...] = Field((Kind.JOB, Kind.SERVICE), description="Kinds of workloads that may use it.")
    variables: dict[str, str] = Field(default_factory=dict, description="Environment variables of its workloads.")
    idle: IdleEntry = Field(IdleEntry(), description="Rule for its idle sessions. Default: the rule of the tenant.")
    max_age: SecondsOrZero | None = Field(None, description=MAX_AGE)
    kernels: dict[KernelName, tuple[str, ...]] = Field(
        default_factory=dict,
        max_length=8,
        description="Jupyter kernels with Python packages of their own, by name. `requirements` are then those of the "
        "session's server. Default: those of `notebook`.",
    )
    tenant: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="Only its members may use the environment. Default: all."
    )
    needs_gpu: bool = Field(False, description="Whether it requires a GPU.")
    built_by: Annotated[str, Field(pattern=r"^([0-9a-z]{13})?$")] = Field(
        "", description="Id of the workload that built it for its tenant. Its packages are installed as wheels only."
    )

    @model_validator(mode="after")
    def _check(self) -> EnvironmentEntry:
        if "python" in self.kernels:
            raise ValueError("Jupyter would start its own Python for a kernel called `python`; call it `python3`")
        if self.kernels and (self.python or self.image):
            raise ValueError("kernels are made here; an environment with kernels has no python and no image")
        return self

    def entry(self) -> Environment:
        kernels = (PythonKernel(name, lists, bool(self.built_by)) for name, lists in self.kernels.items())
        changed: dict[str, Any] = {
            "title": self.title or self.name,
            "variables": tuple(self.variables.items()),
            "kernels": tuple(kernels),
        }
        if self.name == BUILDER:
            changed["kinds"] = ()  # builds run in it, and nothing that a user submits
        same = {name: value for name, value in self if name not in ("idle", "max_age")}
        return Environment(**{**same, **changed}, idle=idle_rule(self.idle, self.max_age))


class MaterialEntry(Entry):
    """The git repository of a material."""

    repository: str = Field(description="Address of the repository: `https://HOST/PATH` or `git@HOST:PATH`.")
    branch: str = Field("main", description="Branch whose newest commit counts.")
    folder: str = Field("", description="Folder in the repository. Default: all of it.")
    poll: Seconds = Field(30, description="How often the repository is checked for a new commit. A webhook is faster.")
    size: Mib = Field(2048, description="Largest size of a version.")
    reset_at_start: bool = Field(
        False,
        description="Whether each session starts with the originals. Edited files are kept under another name. A "
        "session that replaces another, or runs at the same time as one, leaves the files as they are.",
    )

    def material(self) -> Material:
        return Material(self.repository, self.branch, self.folder, self.poll, self.size, self.reset_at_start)


class VolumeEntry(Form):
    """Named data that workloads may mount."""

    name: str = Field(description="Name of the volume: a-z, 0-9, dot, hyphen and underscore.")
    title: Annotated[str, Field(max_length=128)] = Field("", description="Name as it is shown.")
    description: Annotated[str, Field(max_length=500)] = Field("", description="One or two sentences for users.")
    # A document has a `kind` of its own; the table of `commonage.toml` has none.
    kind: VolumeKind = Field(
        VolumeKind.FOLDER,
        validation_alias=AliasChoices("type", "kind"),
        serialization_alias="type",
        description="A shared folder, a Docker volume, or scratch space.",
    )
    source: str = Field("", description="Path of a folder. `{user}` and `{tenant}` are replaced.")
    mode: Literal["ro", "rw"] | None = Field(
        None, description="Widest mode that may be requested. Default: `ro` for folders, otherwise `rw`."
    )
    writers: Writers = Field(
        Writers.EVERYBODY,
        description="Users who may write to it with mode rw: all who may use it, or managers of a tenant.",
    )
    tenants: tuple[str, ...] = Field((), description="Tenants whose members may use it. Empty: all.")
    per: Extent = Field(Extent.ALL, description="Users who share the content of a Docker volume.")
    size: Mib | None = Field(None, description="Size of a Docker volume or of scratch space.")
    memory: bool = Field(False, description="Whether scratch space is in memory.")
    always: bool = Field(False, description="Whether every workload with access gets it without a request.")
    path: str = Field("", description="Where it is mounted in containers. Default: /volumes/NAME.")
    sites: tuple[str, ...] = Field((), description="Sites where it is: workloads that use it run there. Empty: all.")
    material: MaterialEntry | None = Field(
        None, description="The git repository with which it is kept in sync. It then has no source and no mode."
    )

    @model_validator(mode="after")
    def _check(self) -> VolumeEntry:
        check_domain(lambda: check_volume(self.volume()))
        return self

    def volume(self) -> Volume:
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
            sites=self.sites or (() if self.material is None else (LOCAL_SITE,)),
            material=None if self.material is None else self.material.material(),
            writers=self.writers,
        )


class ProfileEntry(Form):
    """Options that fill the launch form with one click."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = Field(
        description="Name of the profile: lower-case letters, digits and hyphens."
    )
    title: Annotated[str, Field(max_length=128)] = Field("", description="Name as it is shown.")
    description: Annotated[str, Field(max_length=500)] = Field("", description="One or two sentences for users.")
    environment: Annotated[str, Field(min_length=1, max_length=96)] | None = Field(
        None, description="Environment that it selects. Default: that of the kind of workload."
    )
    cpus: Milli | None = Field(None, description="CPU cores. Default: those of a request without CPUs.")
    memory: Mib | None = Field(None, description="Memory. Default: that of a request without memory.")
    gpus: Annotated[str, Field(max_length=128)] = Field(
        "", description="GPUs as in the launch form, such as 1, 0.25, 6GiB or A100:1."
    )
    labels: Labels = Field(default_factory=dict, description="Labels that the node must carry.")
    tenants: tuple[str, ...] = Field((), description="Tenants whose members see it. Empty: all.")
    order: int = Field(0, description="Profiles with a lower number are shown first.")

    @model_validator(mode="after")
    def _check(self) -> ProfileEntry:
        check_domain(lambda: parse_gpus(self.gpus))
        return self

    def profile(self) -> Profile:
        return Profile(
            self.name,
            self.title or self.name,
            self.description,
            self.environment,
            self.cpus,
            self.memory,
            self.gpus,
            tuple(sorted(self.labels.items())),
            self.tenants,
            self.order,
        )


KUBERNETES = "kubernetes"
"""The provider of a pool that the autoscaler of the cluster grows."""


class NodePoolEntry(Form):
    """Cloud nodes that are added while workloads wait for them, and removed when they are idle."""

    name: str = Field(description="Name of the pool: lower-case letters, digits and hyphens.")
    provider: Annotated[str, Field(min_length=1)] = Field(
        description="Cloud provider, as libcloud names it, or `kubernetes` for a pool that the cluster's autoscaler "
        "grows."
    )
    size: str = Field("", description="Machine type of the provider. Not for `kubernetes`.")
    image: str = Field(
        "", description="Image of the provider that nodes start from; for `kubernetes`, of the placeholder Pods."
    )
    location: str = Field("", description="Location of the provider.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the driver.")
    options: dict[str, Any] = Field(default_factory=dict, description="Further arguments for a new machine.")
    min: int = Field(0, description="Fewest nodes.")
    max: int = Field(1, description="Maximum number of nodes.")
    idle: Seconds = Field(900, description="How long a node is idle before it is removed.")
    wait: Seconds = Field(60, description="How long a workload waits before a node is added.")
    join_within: Seconds = Field(900, description="How long a new node may take to join.")
    cpus: Milli = Field(description="CPU cores of a node.")
    memory: Mib = Field(description="Memory of a node.")
    gpus: Annotated[int, Field(ge=0, le=16)] = Field(0, description="GPUs of a node.")
    gpu_model: str = Field("", description="Model of the GPUs.")
    gpu_memory: MibOrZero = Field(0, description="VRAM of each GPU.")
    labels: Labels = Field(default_factory=dict, description="Labels of the nodes.")
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="Price of a node per hour. Default: the provider's, if it is known."
    )
    join_options: tuple[str, ...] = Field((), description="Options of the join command.")

    @model_validator(mode="after")
    def _check(self) -> NodePoolEntry:
        check_domain(lambda: self.policy().check())
        if self.provider == KUBERNETES:
            self._check_autoscaled()
        elif not (self.size and self.image):
            raise ValueError(f"a pool of {self.provider} needs size and image, which its nodes are created with")
        if self.gpus and not (self.gpu_model and self.gpu_memory):
            raise ValueError("nodes with GPUs need gpu_model and gpu_memory, so that the scheduler knows what fits")
        return self

    def _check_autoscaled(self) -> None:
        if not self.labels:
            raise ValueError("a pool of kubernetes needs labels, by which its nodes are known")
        if self.min:
            raise ValueError("the cluster's autoscaler keeps the least nodes of a pool of kubernetes; set min there")
        given = {"size", "location", "arguments", "join_options"} & self.model_fields_set
        given |= {f"options.{name}" for name in self.options if name != "gpu_resource"}
        if given:
            raise ValueError(f"a pool of kubernetes has no {min(given)}: the autoscaler decides how its nodes are made")

    def policy(self) -> NodePoolPolicy:
        own = {} if self.provider == KUBERNETES else {"node-pool": self.name}
        kind = MachineKind(
            self.cpus,
            self.memory,
            self.gpus,
            self.gpu_model,
            self.gpu_memory,
            self.price,
            tuple(sorted({**self.labels, **own}.items())),
        )
        return NodePoolPolicy(
            self.name,
            kind,
            engine=KUBERNETES if self.provider == KUBERNETES else "swarm",
            least=self.min,
            most=self.max,
            idle_s=self.idle,
            wait_s=self.wait,
            join_s=self.join_within,
            join_options=self.join_options,
        )

    def node_pool(self) -> NodePool:
        """The pool. Credentials are not part of it."""
        of_provider = (self.provider, self.size, self.image, self.location)
        return NodePool(self.policy(), *of_provider, self.arguments, self.options)
