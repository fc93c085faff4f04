"""Waiting for what has no event of its own. A condition that does not become true fails the test."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


async def until(condition: Callable[[], Any], what: str = "it", *, within_s: float = 60.0) -> Any:
    """The first true value that the condition gives; it may be a coroutine function."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value := await value if inspect.isawaitable(value) else value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], Any], what: str = "it", *, within_s: float = 60.0, every_s: float = 0.05) -> Any:
    """The same outside of an event loop."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(every_s)
    return value


async def early_in_a_minute(left_s: float = 15.0) -> None:
    """Wait for the next minute of the wall clock if less than this is left of the present one."""
    if (left := 60 - time.time() % 60) < left_s:
        await asyncio.sleep(left)


def in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run it in an event loop of its own: the test may already have one in this thread."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(asyncio.run, work).result()
