"""What JupyterHub shows of a session that is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import format_exception

from commonage.hub.spawner import _Refused, why_again
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
