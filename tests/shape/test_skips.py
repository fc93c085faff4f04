"""The summary names missing machinery; with CI=true nothing may be skipped, whatever the reason."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OURS = ("conftest.py", "hanging.py", "made_ahead.py", "fakes/waiting.py")
NEEDS = """
import pytest

@pytest.mark.needs("postgresql")
def test_asks_for_a_database(postgres_url): ...

def test_asks_for_nothing(): ...
"""
PLAIN_SKIP = """
import pytest

@pytest.mark.skip(reason="it rains")
def test_that_nobody_runs(): ...
"""


def run(folder: Path, text: str, *, ci: bool, workers: int = 0) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file in a repository of its own that has our conftest, on a node without PostgreSQL."""
    for name in ("unit", "fakes"):
        (folder / "tests" / name).mkdir(parents=True)
    for name in OURS:
        shutil.copy(TESTS / name, folder / "tests" / name)
    (folder / "tests" / "unit" / "test_one.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs\n")
    environment = {k: v for k, v in os.environ.items() if k not in {"CI", "COMMONAGE_TEST_POSTGRES_URL"}}
    # The run inside must not take itself for a worker of the run outside.
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
    ]
    extra = {"CI": "true"} if ci else {}
    return subprocess.run(command, cwd=folder, env=environment | extra, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_missing_machinery_is_named(tmp_path: Path, workers: int) -> None:
    result = run(tmp_path, NEEDS, ci=False, workers=workers)
    assert result.returncode == 0, result.stdout
    assert "not run on this machine" in result.stdout
    assert "test_asks_for_a_database" in result.stdout
    assert "make test INSTALL=1" in result.stdout
    assert "1 passed, 1 skipped" in result.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_missing_machinery_fails_in_ci(tmp_path: Path, workers: int) -> None:
    result = run(tmp_path, NEEDS, ci=True, workers=workers)
    assert result.returncode == 1, result.stdout
    assert "postgresql is missing here" in result.stdout
    assert "1 passed, 1 error" in result.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_any_skip_fails_in_ci(tmp_path: Path, workers: int) -> None:
    result = run(tmp_path, PLAIN_SKIP, ci=True, workers=workers)
    assert result.returncode == 1, result.stdout
    assert "it rains" in result.stdout
