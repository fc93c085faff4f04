"""The settings that the server writes for JupyterHub."""

from pathlib import Path

import pytest

from commonage.server.processes.hub import HubPlan, hub_child
from commonage.server.settings.settings import Settings
from commonage.wire.hub import HubSettings


@pytest.mark.parametrize(("sessions", "names"), [(1, 200), (20, 200), (50, 500)])
def test_names_that_the_hub_keeps_follow_the_limit_on_sessions(tmp_path: Path, sessions: int, names: int) -> None:
    hub_child(HubPlan(tmp_path, Settings(max_sessions_per_user=sessions), 8000, 8081, 8082, 8083))
    written = HubSettings.model_validate_json((tmp_path / "hub" / "settings.json").read_text())
    assert written.max_named_servers_per_user == names
