"""The benchmark of the scheduler."""

import json
from pathlib import Path
from xml.etree import ElementTree

from click.testing import CliRunner

from benchmarks.planner.passes import measured
from benchmarks.planner.schedule import schedule
from benchmarks.planner.synthetic import QUEUED, RUNNING, SyntheticCluster
from commonage.domain.workloads import State


def test_cluster_is_deterministic_for_a_seed() -> None:
    first, again, other = (
        [cluster.queued(1e9) for _ in range(20)]
        for cluster in (SyntheticCluster(2), SyntheticCluster(2), SyntheticCluster(2, seed=2))
    )
    assert first == again != other
    assert {one.state for one in first} == {State.QUEUED}


def test_measures_a_small_cluster() -> None:
    row = measured(4, steps=2)
    assert (row.nodes, row.devices) == (4, 32)
    assert RUNNING * 4 * 0.5 < row.running <= RUNNING * 4
    assert row.queued == QUEUED * 4
    assert row.started > 0
    for took in (
        row.first,
        row.cut,
        row.changed,
        row.whole,
        row.arrival,
        row.departure,
        row.explain,
        row.front,
        row.dry_run,
    ):
        assert 0 < took.median_ms <= took.p95_ms


def test_command_prints_json_or_a_table() -> None:
    result = CliRunner().invoke(schedule, ["--nodes", "1", "--steps", "1", "--json"])
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["nodes"], row["queued"]) == (1, QUEUED)
    shown = CliRunner().invoke(schedule, ["--nodes", "1", "--steps", "1"])
    assert "departure" in shown.stdout


def test_command_writes_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "growth.svg"
    result = CliRunner().invoke(
        schedule, ["--nodes", "1,2", "--users", "20", "--steps", "1", "--json", "--chart", str(chart)]
    )
    assert result.exit_code == 0, result.output
    svg = ElementTree.fromstring(chart.read_text())
    assert len(svg.findall("{http://www.w3.org/2000/svg}polyline")) == 4
    assert [row["users"] for row in json.loads(result.stdout)["rows"]] == [20, 20]


def test_invalid_sizes_are_refused() -> None:
    result = CliRunner().invoke(schedule, ["--nodes", "many"])
    assert result.exit_code == 2
    assert "like 250,500,1000" in result.output
