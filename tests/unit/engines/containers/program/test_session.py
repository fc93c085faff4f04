"""What a session in a container runs: the environment's own server, by its own Python, which leaves at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commonage.engines.containers.program import CONTAINER_SESSION
from commonage.engines.rundir.programs import SESSION_COMMAND

TAKES_LONG = """
import atexit, sys, threading, time
class Slow:
    def __del__(self, write=print): write("taken apart")
kept = Slow()
atexit.register(lambda: print("asked at exit", flush=True))
print("in", sys.path[0], sys.argv[0], *sys.argv[1:])
"""


def run(folder: Path, server: str | None, within: Path | None = None) -> subprocess.CompletedProcess[str]:
    if server is not None:
        (folder / SESSION_COMMAND[0]).write_text(server)
        (folder / SESSION_COMMAND[0]).chmod(0o755)
    path = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(
        CONTAINER_SESSION, env=path, capture_output=True, text=True, timeout=60, cwd=within, check=False
    )


def python(text: str) -> str:
    return f"#!{sys.executable}\n{TAKES_LONG}{text}"


def test_it_runs_the_server_and_leaves_before_its_memory_is_taken_apart(tmp_path: Path) -> None:
    done = run(tmp_path, python("threading.Thread(target=lambda: (time.sleep(0.3), print('waited for'))).start()"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"in {tmp_path} {tmp_path / SESSION_COMMAND[0]} {' '.join(SESSION_COMMAND[1:])}",
        "waited for",
        "asked at exit",
    ]


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no hub there')", 1, "no hub there"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
    ],
)
def test_exit_code_and_output_are_the_programs_own(tmp_path: Path, end: str, code: int, says: str) -> None:
    done = run(tmp_path, python(end))
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "asked at exit" in done.stdout


def test_files_of_the_users_do_not_stand_in_for_pythons(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("runpy", "atexit", "os", "random"):
        (home / f"{name}.py").write_text("raise SystemExit('that of the user')")
    done = run(tmp_path, python("import random"), within=home)
    assert (done.returncode, done.stderr) == (0, "")


def test_non_python_program_runs_unchanged(tmp_path: Path) -> None:
    assert run(tmp_path, '#!/bin/sh\necho "shell $*"').stdout == f"shell {' '.join(SESSION_COMMAND[1:])}\n"


def test_an_image_without_a_server_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, None)
    assert done.returncode == 127
    assert f"{SESSION_COMMAND[0]}: not found" in done.stderr


def pages(folder: Path, singleuser: str) -> None:
    """A package in the place of JupyterHub, with tables that say when they are read."""
    for name, text in {
        "__init__": "",
        "singleuser": singleuser,
        "orm": "print('tables are read')\nclass Base: made = 'a table'\n",
        "handlers/__init__": "",
        "handlers/pages": "print('pages are read')\nclass HealthCheckHandler: made = 'a page'\n",
    }.items():
        (folder / "jupyterhub" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "jupyterhub" / f"{name}.py").write_text(text)


USED = "print('runs')\nimport jupyterhub.singleuser\n"
LEFT_OUT = (
    "from . import orm\nfrom .handlers.pages import HealthCheckHandler\nprint(isinstance(1, HealthCheckHandler))\n"
)


def test_hub_only_modules_are_not_imported(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT)
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.split("\n") == ["False", "runs", ""]


def test_lazy_module_is_imported_on_use(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT + "def later(): print(orm.Base.made)\n")
    asks = "from jupyterhub.handlers.pages import HealthCheckHandler\nprint(HealthCheckHandler.made)\n"
    done = run(tmp_path, f"#!{sys.executable}\n{USED}jupyterhub.singleuser.later()\n{asks}")
    assert done.stdout.splitlines() == ["False", "runs", "tables are read", "a table", "pages are read", "a page"]


def test_a_version_that_needs_it_at_once_has_it(tmp_path: Path) -> None:
    pages(tmp_path, "from . import orm\nclass Mine(orm.Base): pass\nprint(Mine.made)\n")
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.splitlines() == ["tables are read", "a table", "runs"]


def test_a_database_that_is_needed_at_once_is_whole(tmp_path: Path) -> None:
    pages(tmp_path, "from sqlalchemy.exc import SQLAlchemyError\nimport sqlalchemy\nprint(sqlalchemy.error)\n")
    (tmp_path / "sqlalchemy").mkdir()
    (tmp_path / "sqlalchemy/exc.py").write_text("class SQLAlchemyError(Exception): made = 'an error'\n")
    (tmp_path / "sqlalchemy/__init__.py").write_text("from .exc import SQLAlchemyError\nerror = SQLAlchemyError.made\n")
    assert run(tmp_path, f"#!{sys.executable}\n{USED}").stdout.splitlines() == ["an error", "runs"]


def test_version_that_needs_the_module_is_reimported(tmp_path: Path) -> None:
    pages(tmp_path, LEFT_OUT + "print(HealthCheckHandler.made)\n")
    done = run(tmp_path, f"#!{sys.executable}\n{USED}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["False", "runs", "tables are read", "pages are read", "False", "a page"]
