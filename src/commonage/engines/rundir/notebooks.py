"""A notebook as the command of a job: `analysis.ipynb` instead of a program. Used by all engines."""

from __future__ import annotations

from pathlib import Path

from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import is_notebook

# The Python that has nbclient, whose own program this is: an image may keep it apart from its first `python3`.
_FIND = """\
python=python3
program=$(command -v jupyter-execute) && read -r first <"$program"
case "$first" in "#!"*python*) python=${first#??} ;; esac
exec $python -c "$0" "$@"
"""
_RUNNER = (Path(__file__).parent / "run_notebook.py").read_text(encoding="utf-8")


def runs_notebook(request: StartRequest) -> bool:
    return is_notebook(request.kind, request.command)


def notebook_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs the notebook, which is the first word, with the environment's own nbclient."""
    return ("/bin/sh", "-c", _FIND, _RUNNER, *command)
