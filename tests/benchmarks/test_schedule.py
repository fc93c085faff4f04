"""The benchmark of the planner: what it makes up is plausible, and it says what it was asked."""

import json

from click.testing import CliRunner

from benchmarks.planner.crowd import QUEUED, RUNNING, Crowd
from benchmarks.planner.passes import measured
from benchmarks.planner.schedule import schedule
from commonage.domain.workloads import State


def test_the_same_crowd_comes_for_the_same_seed() -> None:
    first, again, other = ([crowd.queued(1e9) for _ in range(20)] for crowd in (Crowd(2), Crowd(2), Crowd(2, seed=2)))
    assert first == again != other
    assert {one.state for one in first} == {State.QUEUED}


def test_a_small_cluster_is_measured() -> None:
    row = measured(4, steps=2)
    assert (row.nodes, row.devices) == (4, 32)
    assert RUNNING * 4 * 0.5 < row.running <= RUNNING * 4
    assert row.queued == QUEUED * 4
    assert row.started > 0
    for took in (row.first, row.changed, row.whole, row.arrival, row.drain):
        assert 0 < took.median_ms <= took.p95_ms


def test_the_verb_prints_rows_or_a_table() -> None:
    told = CliRunner().invoke(schedule, ["--nodes", "1", "--json"])
    assert told.exit_code == 0
    (row,) = json.loads(told.stdout)["rows"]
    assert (row["nodes"], row["queued"]) == (1, QUEUED)
    shown = CliRunner().invoke(schedule, ["--nodes", "1"])
    assert "drain" in shown.stdout


def test_sizes_are_numbers_of_nodes() -> None:
    told = CliRunner().invoke(schedule, ["--nodes", "many"])
    assert told.exit_code == 2
    assert "like 250,500,1000" in told.output
