"""The settings of clusters: nodes of a cloud that come and go with the work. A part of `settings`' table."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from commonage.clouds.libcloud_machines import Rental, driver_of
from commonage.domain.errors import InvalidInput
from commonage.domain.node_pools import MachineKind, NodePoolPolicy
from commonage.server.settings.rules import Labels
from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import Mib, MibOrNone, Milli, Seconds
from commonage.wire.docs import docs_page


class NodePoolEntry(BaseModel):
    """One `[[node_pools]]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    provider: Annotated[str, Field(min_length=1)]
    size: Annotated[str, Field(min_length=1)]
    image: Annotated[str, Field(min_length=1)]
    location: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    min: int = 0
    max: int = 1
    idle: Seconds = 900
    wait: Seconds = 60
    join_within: Seconds = 900
    cpus: Milli
    memory: Mib
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
    gpu_model: str = ""
    gpu_memory: MibOrNone = 0
    labels: Labels = Field(default_factory=dict)
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    join_options: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _can_be(self) -> NodePoolEntry:
        try:
            self.policy().check()
            driver_of(self.rental())
        except InvalidInput as error:
            raise ValueError(error.message) from error
        if self.gpus and not (self.gpu_model and self.gpu_memory):
            raise ValueError("nodes with GPUs need gpu_model and gpu_memory, so that the planner knows what fits")
        return self

    def policy(self) -> NodePoolPolicy:
        """The same as the domain has it."""
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

    def rental(self) -> Rental:
        """What is rented. The account is only ever in the environment: COMMONAGE_NODE_POOL_<NAME>_KEY and …_SECRET."""
        prefix = f"COMMONAGE_NODE_POOL_{self.name.upper().replace('-', '_')}"
        key, secret = os.environ.get(f"{prefix}_KEY", ""), os.environ.get(f"{prefix}_SECRET", "")
        account = (key, secret, self.location)
        return Rental(self.provider, self.size, self.image, *account, self.arguments, self.options)


def _once(entries: tuple[NodePoolEntry, ...]) -> tuple[NodePoolEntry, ...]:
    names = [one.name for one in entries]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"{doubled!r} stands there twice")
    return entries


class NodePoolSettings(BaseModel):
    """The nodes that are rented."""

    node_pools: Annotated[tuple[NodePoolEntry, ...], AfterValidator(_once)] = setting(
        (),
        "Nodes of a cloud that are added while work waits for them and given back when they idle "
        f"({docs_page('operate/node-pools')}). Only in the file, as `[[node_pools]]` tables with `name`, `provider`, "
        "`size`, `image`, `location`, `min`, `max`, `idle`, `wait`, `join_within`, `cpus`, `memory`, `gpus`, "
        "`gpu_model`, `gpu_memory`, `labels`, `price`, `join_options`, `arguments`, `options`.",
        Row("tables [[node_pools]] in the file", "Whose turn it is"),
    )
