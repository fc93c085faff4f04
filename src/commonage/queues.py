"""A queue for items of very different sizes, as lines of programs are. Used by the streams of API and portal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class SizedQueue(asyncio.Queue[T]):
    """Full with `max_items`, or as soon as the sizes of its items reach `max_size`: one item always fits.

    `size_of` must give the same for an item at any time.
    """

    def __init__(self, max_items: int, max_size: int, size_of: Callable[[T], int]) -> None:
        super().__init__(max_items)
        self._max_size, self._size_of = max_size, size_of
        self._size = 0

    def full(self) -> bool:
        return super().full() or self._size >= self._max_size

    # The hooks that asyncio.Queue has for subclasses.

    def _put(self, item: T) -> None:
        super()._put(item)
        self._size += self._size_of(item)

    def _get(self) -> T:
        item = super()._get()
        self._size -= self._size_of(item)
        return item
