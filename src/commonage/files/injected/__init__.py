"""Files that every engine puts on the search paths of workloads; settings of a user or an image still apply.

python/sitecustomize.py   limits PyTorch and TensorFlow to a GPU share; first on PYTHONPATH of a limited share
jupyter/                  defaults of JupyterLab, "Run as Job", the cell magic; last on JUPYTER_CONFIG_PATH of sessions
"""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).with_name("python")
JUPYTER = Path(__file__).with_name("jupyter")
