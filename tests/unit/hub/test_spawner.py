"""JupyterHub's page for a session that is refused."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import format_exception

from commonage.hub.spawner import CommonageSpawner, _Refused, why_again
from commonage.sdk.errors import ApiError


def test_refusal_shows_only_its_message() -> None:
    refused = _Refused("30 GiB of VRAM were asked for, and the largest GPU has 24 GiB", reason="unschedulable")
    assert format_exception(refused) == ("30 GiB of VRAM were asked for, and the largest GPU has 24 GiB", None)
    assert refused.reason == "unschedulable"


class Control:
    """The client of a control plane that knows one workload."""

    async def workload(self, workload_id: str) -> Any:
        if workload_id != "1m7yv9fqka6p0":
            raise ApiError("workload-not-found", "there is no such workload", status=404)
        return SimpleNamespace(reason=SimpleNamespace(message="ada released its GPU."))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("again-2-1m7yv9fqka6p0", "Your session is started again. ada released its GPU."),
        ("again-1-1m7yv9fqka6p1", "Your session is started again."),
    ],
)
async def test_a_session_that_is_started_again_says_why(key: str, told: str) -> None:
    client: Any = Control()
    assert await why_again(client, key) == told


class User:
    """A user of the hub with one server, which has ended."""

    def __init__(self) -> None:
        self.spawners: dict[str, CommonageSpawner] = {}
        self.spawner = Ended(user=self, hub=object(), authenticator=object())
        self.spawners[""] = self.spawner
        self.cleaning_up, self.go_on = asyncio.Event(), asyncio.Event()

    async def clean_up(self) -> None:
        self.cleaning_up.set()
        await self.go_on.wait()
        self.spawners.pop("", None)


class Ended(CommonageSpawner):
    async def poll(self) -> int | None:
        return 1


@pytest.mark.anyio
async def test_a_request_waits_for_the_clean_up_that_the_timer_began() -> None:
    user = User()
    user.spawner.add_poll_callback(user.clean_up)
    timer = asyncio.create_task(user.spawner.poll_and_notify())
    await user.cleaning_up.wait()
    request = asyncio.create_task(user.spawner.poll_and_notify())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not request.done(), "a start would now take over a server that is being removed"
    user.go_on.set()
    assert (await timer, await request) == (1, 1)
    assert not user.spawners


@pytest.mark.anyio
@pytest.mark.parametrize("stopped", [False, True])
async def test_no_clean_up_after_a_session_that_is_or_was_stopped(stopped: bool) -> None:
    user = User()
    user.spawner.add_poll_callback(user.clean_up)
    if stopped:
        user.spawners[""] = Ended(user=user, hub=object(), authenticator=object())  # a later start
    else:
        user.spawner._stop_pending = True
    await user.spawner.poll_and_notify()
    assert not user.cleaning_up.is_set()
