"""What a session runs that names no command of its own."""

from __future__ import annotations

SESSION_COMMAND = (
    "jupyterhub-singleuser",
    # Sessions run as whoever runs the server, or as root in a container; Jupyter's refusal protects nobody.
    "--allow-root",
    # What is deleted is gone: a rubbish bin that no page shows would fill the home, and a full disk would stay full.
    "--FileContentsManager.delete_to_trash=False",
)
