"""Default command of a session in a container. Used by the container engines."""

from __future__ import annotations

from pathlib import Path

from commonage.engines.rundir.sessions import SESSION_COMMAND

# The environment's own Python is the one in the first line of its Jupyter server. Other programs run as they are.
_FIND = """\
program=$(command -v "$1") && read -r first <"$program"
case "$first" in
  "#!"*python*) shift && exec ${first#??} -c "$0" "$program" "$@" ;;
esac
exec "$@"
"""
_SERVING = (Path(__file__).parent / "serving.py").read_text(encoding="utf-8")

CONTAINER_SESSION = ("/bin/sh", "-c", _FIND, _SERVING, *SESSION_COMMAND)
"""The same Jupyter server as everywhere; this one starts and ends faster."""
