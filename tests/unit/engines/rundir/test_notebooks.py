"""A notebook as the command of a job, where no Jupyter is. Contract and acceptance tests run notebooks."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.engines.containers.test_program import request

from commonage.domain.workloads import Kind
from commonage.engines.rundir.notebooks import notebook_command, runs_notebook


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        notebook_command(words), env=path, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def test_an_environment_without_jupyter_says_so(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    done = ran(tmp_path, "a.ipynb")
    assert done.returncode == 1
    assert "this environment cannot run notebooks" in done.stderr


def test_the_python_that_has_nbclient_runs_it(tmp_path: Path) -> None:
    (tmp_path / "its-python").write_text('#!/bin/sh\nshift 2\necho "$@"\n')
    (tmp_path / "its-python").chmod(0o755)
    (tmp_path / "jupyter-execute").write_text(f"#!{tmp_path}/its-python\n")
    (tmp_path / "jupyter-execute").chmod(0o755)
    assert ran(tmp_path, "a b.ipynb", "--show").stdout == "a b.ipynb --show\n"


@pytest.mark.parametrize(
    ("kind", "command", "is_one"),
    [
        (Kind.JOB, ("a.ipynb",), True),
        (Kind.JOB, ("work/a.ipynb", "--show"), True),
        (Kind.JOB, ("cat", "a.ipynb"), False),
        (Kind.SERVICE, ("a.ipynb",), False),
        (Kind.SESSION, (), False),
    ],
)
def test_only_a_job_whose_command_begins_with_a_notebook_runs_one(
    kind: Kind, command: tuple[str, ...], is_one: bool
) -> None:
    assert runs_notebook(replace(request(), kind=kind, command=command)) is is_one
