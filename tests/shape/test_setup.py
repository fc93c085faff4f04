"""scripts/setup on a node without a usable Python: a clear message, or Debian's Python if requested."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"
TOOLS = ("bash", "cat", "dirname", "env", "grep", "rm", "sha256sum")


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(folder: Path, variables: dict[str, str], *, user: int = 0) -> subprocess.CompletedProcess[str]:
    """Run it with a python3 that lacks ensurepip, and an apt-get whose arguments are recorded."""
    programs = folder / "bin"
    (folder / "scripts").mkdir()
    programs.mkdir()
    shutil.copy(SETUP, folder / "scripts" / "setup")
    for name in TOOLS:
        where = shutil.which(name)
        assert where
        (programs / name).symlink_to(where)
    program(programs / "python3", "exit 1")
    program(programs / "id", f"echo {user}")
    program(programs / "apt-get", f'echo "$@" >>"{folder}/told"')
    environment = {k: v for k, v in os.environ.items() if k not in {"CI", "INSTALL"}}
    command = [str(programs / "bash"), str(folder / "scripts" / "setup"), "run"]
    environment |= {"PATH": str(programs), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("variables", "user"), [({}, 0), ({"CI": "false"}, 0), ({"CI": "true"}, 1000)])
def test_no_python_is_said_with_the_way_to_get_it(tmp_path: Path, variables: dict[str, str], user: int) -> None:
    result = run(tmp_path, variables, user=user)
    assert result.returncode == 1
    assert "apt-get install python3 python3-venv" in result.stderr
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"INSTALL": "1"}])
def test_no_python_is_installed_from_debian_where_asked(tmp_path: Path, variables: dict[str, str]) -> None:
    run(tmp_path, variables)
    told = (tmp_path / "told").read_text()
    assert "install" in told
    assert "python3-venv" in told
