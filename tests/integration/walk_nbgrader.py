"""A class with nbgrader, as docs/use/nbgrader.md shows it: release, fetch, submit, collect and grade, with its recipe.

Not collected with the others, as nbgrader is no requirement of the tests. Make a virtual environment with nbgrader and
run `NBGRADER=DIR/bin/nbgrader .venv/bin/python -m pytest -n 0 tests/integration/walk_nbgrader.py`. The workloads are
processes; that a container has the volumes of its owner alone is in tests/contract/engines/docker/test_volumes.py.
"""

from __future__ import annotations

import csv
import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.served import Served, served

from commonage.catalogue.recipes import shipped_recipe

pytestmark = pytest.mark.timeout(900)  # nbgrader starts ten times, and notebooks with it
NBGRADER = os.environ.get("NBGRADER", "")
GUIDE = Path(__file__).parents[2] / "docs" / "use" / "nbgrader.md"
GROUPS = {"ml101": ["tina", "ann", "bob"], "ml101:teachers": ["tina"]}
CELL = {
    "cell_type": "code",
    "execution_count": None,
    "id": "a1",
    "metadata": {
        "nbgrader": {
            "grade": True,
            "solution": True,
            "locked": False,
            "points": 1,
            "grade_id": "q1",
            "schema_version": 3,
        }
    },
    "outputs": [],
    "source": "### BEGIN SOLUTION\nx = 42\n### END SOLUTION",
}
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "cells": [CELL],
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("nbgrader"), "--gpus", "simulated:1x24GiB") as running:
        resources = GUIDE.read_text().partition("```yaml\n")[2].partition("```")[0]
        file = running.folder / "course.yml"
        file.write_text(resources.replace("/srv/nbgrader", str(running.folder / "exchange")))
        for folder in ("outbound", "inbound"):
            (running.folder / "exchange" / "ml101" / folder).mkdir(parents=True)
        config = running.folder / "jupyter" / "nbgrader_config.py"
        config.parent.mkdir()
        config.write_text(shipped_recipe("nbgrader", "cpu").files["/etc/jupyter/nbgrader_config.py"])
        for group, users in GROUPS.items():
            for user in users:
                running.hub("POST", f"/users/{user}")
            running.hub("POST", f"/groups/{group}").raise_for_status()
            running.hub("POST", f"/groups/{group}/users", json={"users": users}).raise_for_status()
        applied = running.cli("apply", str(file), "--data-dir", str(running.data))
        assert applied.returncode == 0, applied.stderr
        yield running


def runs(installation: Served, user: str, tenant: str, script: str, *volumes: str, fails: bool = False) -> str:
    """Output of the script as a job of this user."""
    programs, config = Path(NBGRADER).parent, installation.folder / "jupyter"
    head = f"exec 2>&1; export JUPYTER_CONFIG_PATH={config} PATH={programs}:$PATH; cd ~\n"
    flags = [word for volume in volumes for word in ("--volume", volume)]
    words = ["run", "--tenant", tenant, *flags, "--", "bash", "-ec", head + textwrap.dedent(script)]
    done = installation.cli(*words, token=installation.token(user))
    print(f"--- {user} in {tenant}: {script}\n{done.stdout}{done.stderr}")
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not NBGRADER, reason="set NBGRADER to the program")
def test_an_assignment_is_released_fetched_submitted_and_collected(installation: Served) -> None:
    students, teachers = "ml101", "ml101:teachers"
    runs(
        installation, "tina", teachers,
        f"""
        mkdir -p ml101/source/ps1; cd ml101
        cat > source/ps1/problem.ipynb <<'EOF'
        {json.dumps(NOTEBOOK)}
        EOF
        nbgrader generate_assignment ps1 --create
        nbgrader release_assignment ps1
        """,
        "ml101-outbound:rw",
    )  # fmt: skip
    for student in ("ann", "bob"):
        runs(
            installation, student, students,
            f"""
            nbgrader fetch_assignment ps1
            sed -i "s/# YOUR CODE HERE/x = '{student}'/; s/raise NotImplementedError()/pass/" ml101/ps1/problem.ipynb
            nbgrader submit ps1
            nbgrader list --inbound
            """,
        )  # fmt: skip
    # Bob pretends to be Ann, sends a link to a file of the grader, and what nbgrader cannot read.
    runs(
        installation, "bob", students,
        """
        cd ~/volumes/ml101-inbound; mine=$(ls)
        cp -r "$mine" "ann+ps1+2099-01-01 00:00:00.000000 UTC+abcdefghijkl"
        mkdir nonsense "bob+ps1+nonsense+x"
        ln -s /etc/passwd "$mine/stolen.txt"; mkfifo "$mine/pipe"
        """,
    )  # fmt: skip
    said = runs(
        installation, "tina", teachers,
        """
        cd ml101; nbgrader collect ps1; ls -R submitted; cat submitted/*/ps1/problem.ipynb
        """,
    )  # fmt: skip
    assert "x = 'ann'" in said and "x = 'bob'" in said
    assert "Processing 2 submissions" in said
    assert "stolen.txt" not in said and "pipe" not in said
    # The pretended submission of Ann is a newer one of Bob.
    again = runs(installation, "tina", teachers, "cd ml101; grep -l ann submitted/*/ps1/problem.ipynb")
    assert again.split() == ["submitted/ann/ps1/problem.ipynb"]
    graded = runs(installation, "tina", teachers, "cd ml101; nbgrader autograde ps1; nbgrader export; cat grades.csv")
    rows = list(csv.DictReader(graded[graded.index("assignment,") :].splitlines()))
    assert {row["student_id"]: row["max_score"] for row in rows} == {"ann": "1.0", "bob": "1.0"}
    # Students have neither the boxes nor a volume to release to; no student may write to the boxes.
    for wrong in ("ml101-submitted", "ml101-outbound:rw"):
        runs(installation, "ann", students, "true", wrong, fails=True)
    runs(installation, "ann", teachers, "true", fails=True)
    runs(installation, "tina", teachers, "true", "ml101-submitted:rw", fails=True)
