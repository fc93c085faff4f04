"""The wheel holds all files of the package, with the portal's assets and the documentation, and nothing else."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
VENDOR = "commonage/portal/static/vendor"
MUST_HOLD = {
    "commonage/py.typed",
    "commonage/join/join.sh",
    "commonage/portal/templates/base.html",
    "commonage/portal/docs_site/index.html",
    "commonage/portal/docs_site/searchindex.js",
    f"{VENDOR}/htmx.min.js",
    f"{VENDOR}/hx-sse.min.js",
    f"{VENDOR}/uPlot.iife.min.js",
    f"{VENDOR}/uPlot.min.css",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel built from this tree."""
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        return set(wheel.namelist())


def test_the_wheel_holds_what_the_package_needs(names: set[str]) -> None:
    assert names >= MUST_HOLD


@pytest.mark.needs("git")
def test_the_wheel_holds_every_file_of_the_package(names: set[str]) -> None:
    command = ["git", "ls-files", "-z", "--", "src/commonage"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name.removeprefix("src/") for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert files - names == set()


def test_the_wheel_holds_nothing_else(names: set[str]) -> None:
    foreign = {name for name in names if not name.startswith("commonage/") and ".dist-info/" not in name}
    assert foreign == set()
    assert {name for name in names if "__pycache__" in name or name.startswith(("tests/", "benchmarks/"))} == set()
