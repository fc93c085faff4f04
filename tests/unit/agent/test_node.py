"""The report of a node with an agent."""

import platform
from pathlib import Path

from commonage.agent.config import AgentConfig
from commonage.agent.node import Node


def test_labels_name_architecture_and_configured_labels(tmp_path: Path) -> None:
    config = AgentConfig(
        node="gpu-1", control=("h:1",), certificate="", key="", request="", authority="", labels=(("zone", "a"),)
    )
    assert Node(config, str(tmp_path)).report((), ()).labels == (
        ("arch", platform.machine()),
        ("os", "linux"),
        ("zone", "a"),
    )
