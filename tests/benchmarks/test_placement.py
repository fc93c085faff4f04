"""The benchmark `placement` on a tiny trace: table, JSON, and errors of options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.cli import main
from benchmarks.placement.policies import POLICIES
from commonage.scheduler.policies.registry import DEFAULT

FIELDS = {
    "list", "policy", "default", "allocation", "allocation_130_std", "fragmented_130", "failed", "per_second",
    "published_130",
}  # fmt: skip


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    nodes = "".join(f"n{i},32000,65536,{devices},T4\n" for i, devices in enumerate((2, 4, 4, 8)))
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    stops = ["1,460", "1,1000", "2,1000", "1,300", "0,0"]
    workloads = "".join(f"p{i},2000,2048,{stop}\n" for i, stop in enumerate(stops))
    for name in ("default", "other"):
        path = tmp_path / f"openb_pod_list_{name}.csv"
        path.write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{workloads}")
    return tmp_path


def bench(traces: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["placement", "--traces", str(traces), *options])


def test_prints_json_rows(traces: Path) -> None:
    result = bench(traces, "--list", "all", "--seeds", "42-43", "--policy", "all", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["list"], row["policy"]) for row in rows] == [(a, b) for a in ("default", "other") for b in POLICIES]
    assert all(row.keys() == FIELDS for row in rows)
    assert {row["policy"] for row in rows if row["default"]} == {DEFAULT}
    published = {row["policy"] for row in rows if row["published_130"] is not None}
    assert published == {"random", "dot-product", "gpu-clustering", "gpu-packing", "best-fit", "fgd"}


def test_prints_a_table(traces: Path) -> None:
    result = bench(traces, "--seeds", "42", "--policy", "fgd,best-fit")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["policy", "at", "130%"]
    assert [line.split()[0] for line in lines[1:3]] == ["fgd", "best-fit"]
    assert "95.39" in lines[1]


def test_results_are_equal_with_two_processes(traces: Path) -> None:
    alone, shared = (
        json.loads(bench(traces, "--seeds", "1-2", "--policy", "fgd", "--json", "--jobs", jobs).stdout)["rows"][0]
        for jobs in ("1", "2")
    )
    for figure in ("allocation", "failed", "fragmented_130"):
        assert alone[figure] == shared[figure]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "bets-fit"), "unknown policy 'bets-fit'; known policies: random,"),
        (("--list", "long"), "unknown list 'long'; lists: default, other, or published, generated or all"),
        (("--seeds", "42-"), "'42-' is not a seed; write numbers like 42, 42-51"),
        (("--seeds", "51-42"), "'51-42' is empty, or exceeds 1000 seeds"),
        (("--traces", "/nowhere"), "/nowhere is not a folder"),
        (("--jobs", "0"), "0 is not in the range 1<=x<=64"),
    ],
)
def test_invalid_options_are_refused_with_a_message(traces: Path, options: tuple[str, ...], message: str) -> None:
    result = bench(traces, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_broken_list_is_refused_with_a_message(traces: Path) -> None:
    (traces / "openb_pod_list_default.csv").write_text("name,cpu_milli\n")
    result = bench(traces, "--seeds", "1")
    assert result.exit_code == 2
    assert "has no column memory_mib" in result.stderr


def test_departures_are_measured_at_each_load(traces: Path) -> None:
    result = bench(traces, "--seeds", "1", "--policy", "fgd,best-fit", "--load", "50,100", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["load"], row["policy"]) for row in found["departures"]] == [
        (load, policy) for load in (50, 100) for policy in ("fgd", "best-fit")
    ]
    assert all(0 < row["allocation"] <= 100 and row["wait_min"] >= 0 for row in found["departures"])


def test_gaps_to_the_baseline_are_sorted(traces: Path) -> None:
    result = bench(traces, "--seeds", "1-2", "--policy", "fgd,best-fit,spread", "--json")
    gaps = json.loads(result.stdout)["gaps"]
    assert {gap["policy"] for gap in gaps} == {"best-fit", "spread"}
    assert [gap["points"] for gap in gaps] == sorted(gap["points"] for gap in gaps)


def test_quick_sample_runs_both_experiments(traces: Path) -> None:
    result = bench(traces, "--quick")
    assert result.exit_code == 0, result.output
    assert "With departures" in result.stdout


def test_invalid_load_is_refused_with_a_message(traces: Path) -> None:
    result = bench(traces, "--load", "much")
    assert result.exit_code == 2
    assert "'much' is not a list of loads" in result.stderr
