"""Files that every engine puts on the search paths of workloads; what a user or an image sets there still counts.

python/sitecustomize.py   limits PyTorch and TensorFlow to a GPU share; first on PYTHONPATH where a share is limited
jupyter/labconfig/…       defaults of JupyterLab; last on JUPYTER_CONFIG_PATH of sessions
"""

from __future__ import annotations

from pathlib import Path

PYTHON = Path(__file__).with_name("python")
JUPYTER = Path(__file__).with_name("jupyter")
