"""Files that every engine puts on the search paths of workloads; settings of a user or an image still apply.

python/sitecustomize.py   limits PyTorch and TensorFlow to a GPU share; first on PYTHONPATH of a limited share
jupyter/labconfig/…       defaults of JupyterLab; the folder jupyter is last on JUPYTER_CONFIG_PATH of sessions
jupyter/…_config.py       offers the apps of apps.json that the environment has; start_app.py and desktop.sh start some
"""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).with_name("python")
JUPYTER = Path(__file__).with_name("jupyter")
