"""Loads Commonage's part of a session's Jupyter server. Jupyter runs this at its start, as a file of configuration.

It makes our modules importable, adds our extensions of JupyterLab, and has IPython kernels load the cell magic.
"""

# mypy: ignore-errors
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("COMMONAGE_WORKLOAD_ID"):
    sys.path.append(_here)
    os.environ.setdefault("PYTHONSTARTUP", os.path.join(_here, "startup.py"))
    c = get_config()  # noqa: F821 - given by Jupyter
    c.ServerApp.jpserver_extensions.update({"commonage_session": True, "commonage_server": True})
    c.LabServerApp.extra_labextensions_path.append(os.path.join(_here, "labextensions"))
