"""The forms of environments, volumes and node pools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from commonage.domain.images import Environment
from commonage.domain.nodes import MachineKind, NodePoolPolicy
from commonage.domain.resources import NodePool
from commonage.domain.volumes import Extent, Volume, VolumeKind, check_volume
from commonage.domain.workloads import Kind
from commonage.resources.fields import Form, Labels, Mib, MibOrZero, Milli, Seconds, SecondsOrZero, check_domain
from commonage.resources.idle import MAX_AGE, IdleEntry, idle_rule


class EnvironmentEntry(Form):
    """An entry of the catalogue that workloads run in."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = Field(
        description="Name of the environment. The name of a built-in one replaces it."
    )
    title: str = Field("", description="Name as it is shown.")
    description: str = Field("", description="One or two sentences for users.")
    requirements: tuple[str, ...] = Field((), description="Python packages, each as in a requirements file.")
    python: str | None = Field(None, description="Path of an existing Python interpreter, instead of requirements.")
    image: str | None = Field(None, description="Container image, for engines that run containers.")
    kinds: tuple[Kind, ...] = Field((Kind.JOB, Kind.SERVICE), description="Kinds of workloads that may use it.")
    variables: dict[str, str] = Field(default_factory=dict, description="Environment variables of its workloads.")
    idle: IdleEntry = Field(IdleEntry(), description="What happens to its idle sessions. Default: as the tenant says.")
    max_age: SecondsOrZero | None = Field(None, description=MAX_AGE)

    def entry(self) -> Environment:
        same = {name: value for name, value in self if name not in ("idle", "max_age")}
        changed = {"title": self.title or self.name, "variables": tuple(self.variables.items())}
        return Environment(**{**same, **changed}, idle=idle_rule(self.idle, self.max_age))


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
        None, description="Most that may be requested. Default: `ro` for folders, otherwise `rw`."
    )
    tenants: tuple[str, ...] = Field((), description="Tenants whose members may use it. Empty: all.")
    per: Extent = Field(Extent.ALL, description="Users who share the content of a Docker volume.")
    size: Mib | None = Field(None, description="Size of a Docker volume or of scratch space.")
    memory: bool = Field(False, description="Whether scratch space is in memory.")
    always: bool = Field(False, description="Whether every workload with access gets it without a request.")
    path: str = Field("", description="Where it is mounted in containers. Default: /volumes/NAME.")
    sites: tuple[str, ...] = Field((), description="Sites where it is: workloads that use it run there. Empty: all.")

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
            sites=self.sites,
        )


class NodePoolEntry(Form):
    """Cloud nodes that are added while workloads wait for them, and removed when they are idle."""

    name: str = Field(description="Name of the pool: lower-case letters, digits and hyphens.")
    provider: Annotated[str, Field(min_length=1)] = Field(description="Cloud provider, as libcloud names it.")
    size: Annotated[str, Field(min_length=1)] = Field(description="Machine type of the provider.")
    image: Annotated[str, Field(min_length=1)] = Field(description="Image of the provider that nodes start from.")
    location: str = Field("", description="Location of the provider.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the driver.")
    options: dict[str, Any] = Field(default_factory=dict, description="Further arguments for a new machine.")
    min: int = Field(0, description="Fewest nodes.")
    max: int = Field(1, description="Most nodes.")
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
        if self.gpus and not (self.gpu_model and self.gpu_memory):
            raise ValueError("nodes with GPUs need gpu_model and gpu_memory, so that the scheduler knows what fits")
        return self

    def policy(self) -> NodePoolPolicy:
        kind = MachineKind(
            self.cpus,
            self.memory,
            self.gpus,
            self.gpu_model,
            self.gpu_memory,
            self.price,
            tuple(sorted({**self.labels, "node-pool": self.name}.items())),
        )
        return NodePoolPolicy(
            self.name,
            kind,
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
