"""Tasks of our services, as of the last query to the Swarm. Used by `container_client` and `watcher`.

One call reads all tasks. Swarm's events do not include tasks, so the Swarm is polled: often while a change is expected,
else every few seconds. The control folders of attempts show changes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.descriptions import installation_filter
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.statuses import attempt_of


class Tasks:
    """Tasks of one installation's services: the first of each, because no second one runs its command."""

    def __init__(self, client: Client, installation: str) -> None:
        self._client = client
        self._label = installation_filter(installation)
        self._tasks: Mapping[str, Json] = {}
        self._asked_at = float("-inf")
        self.refresh_requested = asyncio.Event()

    def of(self, attempt_id: str) -> Json | None:
        """The task of an attempt; None if it had none at the last query."""
        return self._tasks.get(attempt_id)

    def is_newer_than(self, moment: float) -> bool:
        """True if Swarm was queried after this moment, by the loop's time."""
        return self._asked_at > moment

    def refresh_soon(self) -> None:
        """Query soon, because a change is expected."""
        self.refresh_requested.set()

    def forget(self, attempt_id: str) -> None:
        self._tasks = {attempt: task for attempt, task in self._tasks.items() if attempt != attempt_id}

    async def ask(self) -> set[str]:
        """Query all; return the attempts whose task has changed. Raises EngineFailure."""
        began = asyncio.get_running_loop().time()
        found: dict[str, Json] = {}
        for task in sorted(await self._client.tasks(self._label), key=lambda one: str(one["CreatedAt"])):
            found.setdefault(attempt_of(task), task)
        before = self._tasks
        self._tasks, self._asked_at = found, began
        return {one for one in found.keys() | before.keys() if _version(found.get(one)) != _version(before.get(one))}


def _version(task: Json | None) -> object:
    return None if task is None else (task["ID"], task["Version"]["Index"])
