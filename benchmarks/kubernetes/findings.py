"""Losses and duplicates, one sentence each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    """Between the engine's cache and a fresh list."""

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.different]
