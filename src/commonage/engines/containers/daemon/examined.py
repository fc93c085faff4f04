"""Findings about a daemon, as text for an admin. Created by the engines' doctors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Examined:
    """`advice` is empty if no action is needed."""

    said: str
    advice: str
