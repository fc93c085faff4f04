"""What commands beside an attempt share on every engine: the mark that they carry, the shell that begins and ends them.

Of the standard library alone: agents use it, too.
"""

from __future__ import annotations

import secrets

from commonage.ports.execs import NotRunning

MARK = "COMMONAGE_EXEC"
"""The variable by which all that such a command starts is found again; its value is one command's own."""
GRACE_S = 1.0
"""Between the request to end (SIGHUP) and force."""
KILLED = 137

SHELL = """
if [ "$#" -eq 0 ]; then
  if command -v bash >/dev/null 2>&1; then set -- bash; else set -- sh; fi
fi
exec "$@"
"""
"""The end of what begins a command, for /bin/sh -c: its arguments are the command, a shell if there are none."""

NAME = "commonage exec"
"""What that shell calls itself where it says that a command is not there."""


def new_mark() -> str:
    """Another than all before."""
    return secrets.token_hex(12)


def not_running(attempt_id: str) -> NotRunning:
    """Nothing runs there, or not any more."""
    return NotRunning(f"{attempt_id[:100]} does not run, so that nothing can run beside it")
