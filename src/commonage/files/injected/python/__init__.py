"""A folder for the PYTHONPATH of workloads: holds `sitecustomize` and nothing else. Nobody here imports it."""
