"""What a session runs that names no command of its own."""

from __future__ import annotations

import json

_SHELL = 'exec "${SHELL:-$(command -v bash || command -v sh)}"'
_TERMINALS = json.dumps({"shell_command": ["/bin/sh", "-c", _SHELL]})

SESSION_COMMAND = (
    "jupyterhub-singleuser",
    # Sessions run as whoever runs the server, or as root in a container; Jupyter's refusal protects nobody.
    "--allow-root",
    # What is deleted is gone: a rubbish bin that no page shows would fill the home, and a full disk would stay full.
    "--FileContentsManager.delete_to_trash=False",
    # Jupyter starts `sh -l` otherwise, whose PATH is the system's: without the environment's own programs.
    f"--ServerApp.terminado_settings={_TERMINALS}",
)
