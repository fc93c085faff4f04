"""Node pools of nodes that are rented, as the API shows them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from commonage.wire.workloads import ReasonOut


class PoolNodeOut(BaseModel):
    """One rented machine."""

    name: str
    state: str = Field(description="In words: on its way, ready, idle for 5 min, leaving, lost, failed, given back.")


class NodePoolOut(BaseModel):
    """A node pool, what its policy does next, and what an hour of it costs now and then."""

    name: str
    provider: str
    min: int
    max: int
    idle_s: int
    cpus: float
    memory_mib: int
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    machines: list[PoolNodeOut]
    adding: int = Field(description="So many more come next.")
    removing: list[str] = Field(description="These go next.")
    reason: ReasonOut
    price_per_h: float = Field(description="Of one node, an hour; 0 where it is not known.")
    cost_per_h: float
    cost_after_per_h: float
    currency: str
    last_error: str = Field(description="What the cloud last refused, in its words; empty when all is well.")


class NodePoolList(BaseModel):
    """All node pools."""

    items: list[NodePoolOut]
