"""Signals: a part of control notifies others without knowing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its followers in the order in which they were added. A follower must not block."""

    def __init__(self) -> None:
        self._followers: list[Callable[P, None]] = []

    def follow(self, follower: Callable[P, None]) -> None:
        self._followers.append(follower)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for follower in self._followers:
            follower(*args, **kwargs)
