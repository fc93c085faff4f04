"""Files that every engine puts on the search paths of workloads; settings of a user or an image still apply.

python/sitecustomize.py   limits PyTorch and TensorFlow to a GPU share; first on PYTHONPATH of a limited share
jupyter/                  last on JUPYTER_CONFIG_PATH of sessions
  labconfig/…             defaults of JupyterLab
  jupyter_server_config.py  loads those below, and offers the apps of apps.json that the environment has
  commonage_session.py    reports whether the session is used, and passes on notices to its page
  commonage_server.py, commonage_magic.py, …  run a notebook or a cell as a job
  labextensions/…         show these notices in JupyterLab, and the button "Run as Job"
  templates/500.html      reloads the page of an app that did not start in time
  start_app.py, desktop.sh  start some of the apps
"""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).with_name("python")
JUPYTER = Path(__file__).with_name("jupyter")
