"""Sites on the command line: `--near`, and the explanation of every site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.waiting import wait_until
from tests.integration.api_world import Api, served
from tests.integration.command_line import Run, commonage_at

from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.engine import FakeEngine

FILE = "kind: Volume\nname: scans\nsource: /srv/scans\nsites: [east]\n"


@pytest.fixture
def commonage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    def prepare(api: Api) -> None:
        forever = Behaviour(lasts_s=None)
        api.engine.behave(forever)
        node = factories.node("gpu-1", 1).report
        api.control.engines.add(FakeEngine("east", [node], api.control.clock, default=forever))

    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "api", prepare=prepare) as url:
        run = commonage_at(url, tmp_path)
        wait_until(lambda: "east/gpu-1" in run("node", "ls").output, "the node of the second site")
        (tmp_path / "scans.yml").write_text(FILE)
        assert run("apply", "scans.yml", token="admin:root").exit_code == 0
        yield run


def run_near(commonage: Run) -> dict[str, Any]:
    made = commonage("run", "--detach", "--no-files", "--json", "--gpus", "1", "--near", "scans", "--", "x")
    assert made.exit_code == 0, made.output
    return dict(json.loads(made.stdout))


def test_a_job_runs_where_its_data_is_and_the_next_one_says_why_it_waits(commonage: Run) -> None:
    first = run_near(commonage)
    wait_until(lambda: "east/gpu-1" in commonage("ps").output, "the start at the site of the volume")
    assert first["near"] == "scans"
    waiting = run_near(commonage)
    explained = commonage("explain", waiting["id"])
    lines = explained.output.splitlines()
    sites = lines[lines.index("Sites:") + 1 :][:2]
    assert sites[0].startswith("  east: Not enough free GPUs")
    assert sites[1] == "  local: The volume scans is not there."
    assert "at east" in commonage("volume", "ls").output


def test_a_job_file_may_name_the_volume(commonage: Run, tmp_path: Path) -> None:
    (tmp_path / "x.commonage.yml").write_text("command: x\nnear: scans\nfiles: false\n")
    assert commonage("submit", "x.commonage.yml").exit_code == 0
    wait_until(lambda: "east/gpu-1" in commonage("ps").output, "the start at the site of the volume")


def test_an_unknown_volume_or_site_is_refused_with_the_choices(commonage: Run) -> None:
    volume = commonage("run", "--no-files", "--near", "nothing", "--", "x")
    assert (volume.exit_code, "there is no volume 'nothing'" in volume.output, "scans" in volume.output) == (
        2,
        True,
        True,
    )
    site = commonage("run", "--no-files", "--site", "west", "--", "x")
    assert site.exit_code == 2
    assert "No site west has nodes for members of commons. Choose one of east, local." in site.output
