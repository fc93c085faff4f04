"""What was found of a daemon, in words for an admin. Made by the engines' doctors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Examined:
    """`advice` is empty where nothing is to be done."""

    said: str
    advice: str
