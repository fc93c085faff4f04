"""Shared by exec commands on every engine: the mark that they carry, and the shell that starts and ends them.

Standard library only, because agents use it too.
"""

from __future__ import annotations

import secrets

from commonage.ports.execs import NotRunning

MARK = "COMMONAGE_EXEC"
"""Variable that marks all processes of a command; its value is unique per command."""
GRACE_S = 1.0
"""Seconds between the request to end (SIGHUP) and SIGKILL."""
KILLED = 137

SHELL = """
if [ "$#" -eq 0 ]; then
  if command -v bash >/dev/null 2>&1; then set -- bash; else set -- sh; fi
fi
exec "$@"
"""
"""End of the /bin/sh -c script that starts a command. Its arguments are the command; without any it starts a shell."""

NAME = "commonage exec"
"""Name under which that shell reports a command that is not found."""


def new_mark() -> str:
    return secrets.token_hex(12)


def not_running(attempt_id: str) -> NotRunning:
    return NotRunning(f"{attempt_id[:100]} does not run, so that nothing can run beside it")
