"""What JupyterHub shows of a session that is refused."""

from jupyterhub.utils import format_exception

from commonage.hub.spawner import _Refused


def test_refusal_shows_only_its_message() -> None:
    refused = _Refused("30 GiB of VRAM were asked for, and the largest GPU has 24 GiB", reason="unschedulable")
    assert format_exception(refused) == ("30 GiB of VRAM were asked for, and the largest GPU has 24 GiB", None)
    assert refused.reason == "unschedulable"
