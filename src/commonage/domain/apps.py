"""Apps that a session may offer besides JupyterLab."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class App:
    """`path` is below the session's URL."""

    name: str
    title: str
    path: str
