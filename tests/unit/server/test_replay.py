"""`commonage replay`: the past as it was, and as it could have been."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from commonage.cli.app import app
from commonage.domain.nodes import Node
from commonage.domain.workloads import State
from commonage.ports.store import Batch
from commonage.store import upgrade as schema
from commonage.store.sql_store import SqlStore
from commonage.store.urls import sqlite_url
from commonage.testing import factories

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four workloads of an hour each, for one GPU each, submitted at once; half of them by another."""
    path = tmp_path / "trace.csv"
    rows = [f"w{number},1000,1024,1,1000,,{'LS' if number % 2 else 'BE'},Running,0,3600,0" for number in range(4)]
    path.write_text("\n".join([HEAD, *rows]))
    return path


def replay(*words: str) -> Result:
    return CliRunner().invoke(app, ["replay", *words])


def test_more_devices_mean_shorter_waits(trace: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.html"
    result = replay("--trace", str(trace), "--cluster", "1x2", "--gpus", "+2", "--chart", str(chart), "--json")
    assert result.exit_code == 0, result.output
    now, then = json.loads(result.stdout)["settings"]
    assert now["setting"].startswith("present (")
    assert then["setting"].endswith("+2 GPUs")
    assert (now["wait_p95_s"], then["wait_p95_s"]) == (3600, 0)
    assert (now["makespan_s"], then["makespan_s"]) == (7200, 3600)
    assert now["gpu_utilisation"] == then["gpu_utilisation"] == 1
    assert "+2 GPUs" in chart.read_text()


def test_a_quota_and_several_policies_side_by_side(trace: Path) -> None:
    words = ("--cluster", "1x4", "--policy", "spread,best-fit", "--quota", "be=gpus:1", "--limits", "2")
    result = replay("--trace", str(trace), *words)
    assert result.exit_code == 0, result.output
    assert "4 workloads of 0.0 days." in result.stdout
    assert "spread, quota of be" in result.stdout
    assert "best-fit, quota of be" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give either --history or --trace FILE"),
        (("--trace", "nothing.csv", "--history"), "give either --history or --trace FILE"),
        (("--trace", "nothing.csv"), "nothing.csv cannot be read"),
        (("--trace", "TRACE", "--cluster", "many"), "invalid cluster 'many'"),
        (
            ("--trace", "TRACE", "--policy", "magic"),
            "unknown policy 'magic'; known policies: best-fit, spread, expected-waste. Write module:name",
        ),
        (("--trace", "TRACE", "--quota", "be:4"), "Write TENANT=gpus:4"),
        (("--trace", "TRACE", "--quota", "be=cats:4"), "Write TENANT=gpus:4"),
        (("--trace", "TRACE", "--gpus", "-99"), "cannot remove 99 GPUs"),
        (("--trace", "TRACE", "--last", "soon"), "'soon'"),
        (("--trace", "TRACE", "--cluster", "1x0"), "no workloads to replay. 4 workloads are omitted"),
    ],
)
def test_invalid_options_are_refused(trace: Path, words: tuple[str, ...], says: str) -> None:
    result = replay(*(str(trace) if word == "TRACE" else word for word in words))
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_custom_policy_is_replayed(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policy.py").write_text(
        "from commonage.scheduler.policies.scored import BestFit\nclass Mine(BestFit): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    result = replay("--trace", str(trace), "--cluster", "1x4", "--policy", "my_policy:Mine,best-fit", "--json")
    assert result.exit_code == 0, result.output
    _, mine, best_fit = json.loads(result.stdout)["settings"]
    assert mine.pop("setting") == "my_policy:Mine"
    assert best_fit.pop("setting") == "best-fit"
    assert mine == best_fit


def test_a_policy_that_cannot_be_imported_is_a_usage_error(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_broken_policy.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    result = replay("--trace", str(trace), "--policy", "my_broken_policy:Mine")
    assert result.exit_code == 2
    assert "importing the module my_broken_policy failed" in " ".join(result.stderr.split())


def test_our_own_history(tmp_path: Path) -> None:
    anyio.run(_remember, tmp_path, factories.node("here"))
    result = replay("--history", "--data-dir", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"][0]["workloads"] == 3
    assert found["then"] == {"wait_p50_s": 10, "wait_p95_s": 20}
    assert found["notes"] == ["1 workloads that never started are omitted: their durations are unknown"]


async def _remember(folder: Path, node: Node) -> None:
    url = sqlite_url(folder / "commonage.db")
    await schema.upgrade(url)
    store = SqlStore(url)
    await store.open()
    batch = Batch(nodes=[node])
    for number in range(3):
        allocation = factories.allocation(node=node.name, at=1000.0 + 10 * number)
        workload = factories.workload(State.STOPPED, submitted_at=1000.0)
        attempt = factories.attempt(workload.id, state=State.STOPPED)
        allocation = replace(allocation, attempt_id=attempt.id)
        attempt = replace(attempt, allocation=allocation, started_at=allocation.at, ended_at=allocation.at + 60)
        batch.inserts.append(replace(workload, attempt=attempt))
    batch.inserts.append(replace(factories.workload(State.STOPPED), attempt=None))
    await store.commit(batch)
    await store.close()
