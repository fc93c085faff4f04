"""The Python client of Commonage: `Client` and, for programs on asyncio, `AsyncClient`.

Used by people's scripts, the command line and the hub's spawner. It imports only the messages (`commonage.wire`)
and HTTP. Importing it is cheap: its dependencies are imported when one of its names is first used.

    from commonage.sdk import Client, SubmitIn

    with Client("http://127.0.0.1:8000", token) as commonage:
        job = commonage.submit(SubmitIn(command=["python", "train.py"], gpus="6GiB", time_limit_s=1800)).workload
        for line in commonage.logs(job.id, follow=True):
            print(line.text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commonage.sdk.asynchronous import AsyncClient
    from commonage.sdk.errors import ApiError, Unreachable
    from commonage.sdk.synchronous import Client
    from commonage.wire.classes import ClassIn
    from commonage.wire.cron_jobs import CronJobIn, TriggerIn
    from commonage.wire.tenants import ReservationIn
    from commonage.wire.workloads import DependencyIn, SubmitIn

_HOMES = {
    "ApiError": "commonage.sdk.errors",
    "ClassIn": "commonage.wire.classes",
    "AsyncClient": "commonage.sdk.asynchronous",
    "Client": "commonage.sdk.synchronous",
    "CronJobIn": "commonage.wire.cron_jobs",
    "DependencyIn": "commonage.wire.workloads",
    "ReservationIn": "commonage.wire.tenants",
    "SubmitIn": "commonage.wire.workloads",
    "TriggerIn": "commonage.wire.cron_jobs",
    "Unreachable": "commonage.sdk.errors",
}

__all__ = [
    "ApiError",
    "AsyncClient",
    "ClassIn",
    "Client",
    "CronJobIn",
    "DependencyIn",
    "ReservationIn",
    "SubmitIn",
    "TriggerIn",
    "Unreachable",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
