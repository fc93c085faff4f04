"""Fencing: ends or pauses attempts when the Docker daemon or the control plane is lost."""
