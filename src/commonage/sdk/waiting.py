"""`wait` of the two clients: the asynchronous one follows events, the blocking one polls, so that it can time out."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from commonage.wire.workloads import TERMINAL_STATES, WorkloadOut

if TYPE_CHECKING:
    from commonage.sdk.asynchronous import AsyncClient
    from commonage.sdk.synchronous import Client


async def async_wait(client: AsyncClient, workload_id: str, timeout_s: float | None) -> WorkloadOut:
    """Wait until the workload has ended and return it. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        workload = await client.workload(workload_id)
        if workload.state in TERMINAL_STATES:
            return workload
        async with aclosing(client.events(workload_id, after=0)) as events:
            async for event in events:
                if event.state in TERMINAL_STATES:
                    workload = await client.workload(workload_id)
                if workload.state in TERMINAL_STATES:
                    break
        return workload


def wait(client: Client, workload_id: str, timeout_s: float | None) -> WorkloadOut:
    """Wait until the workload has ended and return it. Raises TimeoutError."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = 0.05
    while (workload := client.workload(workload_id)).state not in TERMINAL_STATES:
        if deadline is not None and time.monotonic() + pause > deadline:
            raise TimeoutError(f"workload {workload_id} is still {workload.state} after {timeout_s:g} s")
        time.sleep(pause)
        pause = min(0.5, pause * 1.5)
    return workload
