"""Files that every engine puts on the search paths of workloads; settings of a user or an image still apply.

python/sitecustomize.py   limits PyTorch and TensorFlow to a GPU share; first on PYTHONPATH of a limited share
jupyter/                  last on JUPYTER_CONFIG_PATH of sessions
  labconfig/…             defaults of JupyterLab
  jupyter_server_config.py  loads the two below
  commonage_session.py    reports whether the session is used, and passes on notices to its page
  labextensions/…         shows these notices in JupyterLab
"""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).with_name("python")
JUPYTER = Path(__file__).with_name("jupyter")
