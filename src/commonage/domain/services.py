"""Whether a running service answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ServiceHealth(StrEnum):
    """`starting`: it has not answered yet; `not-answering`: it did, and its last health checks failed."""

    STARTING = "starting"
    READY = "ready"
    NOT_ANSWERING = "not-answering"


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """A running service that the proxy serves. `url` is that of its attempt, on the network of its site."""

    workload_id: str
    url: str
