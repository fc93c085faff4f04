"""The day of a class: its report, and a short day on a real Swarm in which nothing may fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.harness.jupyter_image import AHEAD

from benchmarks.classroom.classroom import Day, Plan, figures
from benchmarks.classroom.student import Times

ROOT = Path(__file__).parents[2]


def test_report_counts_what_failed_and_leaves_out_what_nobody_did() -> None:
    day = Day(Times(sign_in=[1.0, 2.0, 3.0], cell=[0.25]), errors=["ada: restart: refused"], lost=["ada: one"], steps=7)
    shown = {one.name: one for one in figures(Plan(3, 10.0, 1), day)}
    assert (shown["sign-in, p50"].value, shown["sign-in, p95"].value) == (2.0, 3.0)
    assert (shown["cell, p95"].value, shown["cell, p95"].unit) == (250.0, "ms")
    assert (shown["errors"].value, shown["work lost"].value) == (1, 1)
    assert "of 7 files" in shown["work lost"].how
    assert not any(name.startswith("restart") for name in shown)


@pytest.mark.needs("docker", "images")
@pytest.mark.made_ahead(AHEAD)
@pytest.mark.timeout(3600)
def test_class_loses_a_worker_and_no_work() -> None:
    argv = [sys.executable, "-m", "benchmarks", "class", "--short", "--json"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-8000:]}"
    answer = json.loads(ran.stdout)
    assert answer["findings"] == {"errors": [], "lost": []}
    shown = {one["name"]: one["value"] for one in answer["figures"]}
    assert {"TensorBoard opens, p95", "material arrives, p95", "restart, p95", "working again, p95"} <= shown.keys()
