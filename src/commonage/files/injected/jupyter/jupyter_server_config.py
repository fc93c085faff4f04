"""Settings of a session's Jupyter server, last on JUPYTER_CONFIG_PATH: those of a user or an image still apply.

Makes our modules importable in the server (commonage_server), adds our extension of JupyterLab, and has each IPython
kernel load the cell magic (startup.py).
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:
    sys.path.append(HERE)
os.environ.setdefault("PYTHONSTARTUP", os.path.join(HERE, "startup.py"))
c = get_config()  # type: ignore[name-defined]  # noqa: F821 - Jupyter defines it
c.LabApp.extra_labextensions_path.append(os.path.join(HERE, "labextensions"))
