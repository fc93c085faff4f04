"""Loads Commonage's part of a session's Jupyter server. Jupyter runs this at its start, as a file of configuration."""

# mypy: ignore-errors
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("COMMONAGE_WORKLOAD_ID"):
    sys.path.append(_here)
    c = get_config()  # noqa: F821 - given by Jupyter
    c.ServerApp.jpserver_extensions.update({"commonage_session": True})
    c.LabServerApp.extra_labextensions_path.append(os.path.join(_here, "labextensions"))
