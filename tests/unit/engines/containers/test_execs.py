"""Preparation of commands in a workload."""

import subprocess
from pathlib import Path

from commonage.engines.containers.execs import _BEGIN
from commonage.engines.rundir.programs import NAME

SHOW = ("sh", "-c", 'echo "${PYTHONPATH-none}"')


def begun(script: str, **variables: str) -> str:
    arguments = ["/bin/sh", "-c", script, NAME, "the-mark", "0", "0", *SHOW]
    return subprocess.run(arguments, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_exec_command_gets_framework_limits(tmp_path: Path) -> None:
    script = _BEGIN.replace("/run/commonage/python", str(tmp_path))
    assert begun(script, PATH="/usr/bin:/bin") == str(tmp_path)
    assert begun(script, PATH="/usr/bin:/bin", PYTHONPATH="/of/the/image") == f"{tmp_path}:/of/the/image"
    assert begun(_BEGIN, PATH="/usr/bin:/bin") == "none"
