"""A folder for the PYTHONPATH of workloads: holds only `sitecustomize`. Not imported by this package."""
