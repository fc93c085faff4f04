"""The last reports of agents, read back as they were written."""

from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.engines import PrivilegesMayBeGained
from commonage.domain.statuses import ProcessOwner
from commonage.link import saved_reports
from commonage.ports.agents import AgentReport
from commonage.ports.devices import DeviceSample
from commonage.testing import factories

SAID = AgentReport(
    "gpu-1", NodeReport("gpu-1", 4000, 8000, (factories.device(),)), 1000.5, 12.5, True,
    fenced=("a-1",), neighbors=("gpu-1", "gpu-2"), notices=(PrivilegesMayBeGained(),), bounds_volumes=True,
)  # fmt: skip


def test_reports_are_restored_without_measurements(tmp_path: Path) -> None:
    file = tmp_path / "agents.json"
    moment = {"samples": (DeviceSample("GPU-1", 1, 0.5),), "owners": (ProcessOwner(1, None, "sh", 0.0),)}
    saved_reports.write(file, [replace(SAID, paused=("a-2",), **moment)])
    assert saved_reports.read(file) == (SAID,)


@pytest.mark.parametrize("text", ["{ half", "[]", '{"each": [{"node": 1}]}', "\xff"])
def test_unreadable_file_gives_no_reports(tmp_path: Path, text: str) -> None:
    (tmp_path / "agents.json").write_text(text, encoding="latin-1")
    assert saved_reports.read(tmp_path / "agents.json") == ()
    assert saved_reports.read(tmp_path / "other.json") == ()
