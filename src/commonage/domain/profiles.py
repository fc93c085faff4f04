"""Launch profiles: values that fill the launch form with one click."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of options for a new workload. None and empty: the default. `gpus` is the text of a request.

    Empty `tenants`: for all. Profiles are shown by `order`, then by name.
    """

    name: str
    title: str
    description: str = ""
    environment: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    gpus: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    tenants: tuple[str, ...] = ()
    order: int = 0

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants
