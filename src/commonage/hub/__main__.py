"""`python -m commonage.hub SETTINGS.json`: JupyterHub with Commonage's configuration, a child of the server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from commonage.hub.accounts import CommonageHub

SETTINGS_VARIABLE = "COMMONAGE_HUB_SETTINGS"

if __name__ == "__main__":
    os.environ[SETTINGS_VARIABLE] = sys.argv[1]
    CommonageHub.launch_instance(["--config", str(Path(__file__).with_name("jupyterhub_config.py")), *sys.argv[2:]])
