"""Default command of a session. Used by the engines."""

from __future__ import annotations

import json

_SHELL = 'exec "${SHELL:-$(command -v bash || command -v sh)}"'
_TERMINALS = json.dumps({"shell_command": ["/bin/sh", "-c", _SHELL]})

SESSION_COMMAND = (
    "jupyterhub-singleuser",
    # Sessions run as the server's own user, or as root in a container; Jupyter's refusal to run as root protects
    # nobody.
    "--allow-root",
    # Deletes files for good: a trash folder that no page shows would fill the home, and a full disk would stay full.
    "--FileContentsManager.delete_to_trash=False",
    # Otherwise Jupyter starts `sh -l`, whose PATH is the system's: without the environment's own programs.
    f"--ServerApp.terminado_settings={_TERMINALS}",
)
