"""Work that must not be cut in two when the task that waits for it is cancelled. Standard library only.

Below all other packages: engines and the site agent, which is blind to them, use it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


async def to_the_end(work: Awaitable[_T], cancelled_within_s: float = math.inf) -> _T:
    """Return the result of `work`. A caller that is cancelled still waits until it is over.

    `cancelled_within_s`: the longest that a cancelled caller waits; then `work` is cancelled, too. Without it, `work`
    needs a limit of its own.
    """
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + cancelled_within_s
        while not doing.done() and (left_s := give_up - loop.time()) > 0:
            with suppress(asyncio.CancelledError):  # cancelled again
                await asyncio.wait({doing}, timeout=None if math.isinf(left_s) else left_s)
        if not doing.done():
            doing.cancel()
        elif not doing.cancelled():
            doing.exception()  # marks it as retrieved: no waiter is left
        raise
