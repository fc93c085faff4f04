"""The report of the benchmark `gpu`: rows, failed parts, and a machine without a GPU."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.cli import main
from benchmarks.gpu import gpu
from benchmarks.gpu.gpu import Part, report, trial_lines


def trial(held: bool | None, promised: bool = True) -> dict[str, Any]:
    return {
        "index": 0, "model": "A100", "level": "mps", "check": "see another GPU", "promised": promised, "held": held,
        "found": "it sees 1 other GPUs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (trial(True), "| held |"),
        (trial(False), "| **did not hold** |"),
        (trial(False, promised=False), "| not promised |"),
        (trial(None), "| not tried |"),
    ],
)
def test_trial_becomes_a_row(one: dict[str, Any], outcome: str) -> None:
    assert outcome in trial_lines([one])[-1]


def test_report_lists_parts_in_order() -> None:
    text = report([Part("First", ("a", "b"), True), Part("Second", ("c",), False)])
    assert text.index("## First\n\na\nb\n") < text.index("## Second\n\nc\n")


def test_failed_part_is_reported_and_the_rest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def call(*words: str, **_: str) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 2, "", "commonage: the driver does not answer")

    monkeypatch.setattr(gpu, "_call", call)
    monkeypatch.setattr(gpu, "_on_a_server", lambda *_: [])
    parts = gpu.run(tmp_path / "report.md", 1.0)
    assert [part.is_good for part in parts] == [False] * 3
    assert (tmp_path / "report.md").read_text().count("the driver does not answer") == 3
    assert [words[2] for words in asked] == ["--json", "--level", "--measure"]


def test_without_gpu_lists_the_parts_that_were_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: "There is no real GPU here.")
    done = CliRunner().invoke(main, ["gpu", "--out", str(tmp_path / "report.md")])
    assert done.exit_code == 0
    assert "There is no real GPU here." in done.output
    assert all(title in done.output for title, _ in gpu.WHAT)
    assert not (tmp_path / "report.md").exists()
