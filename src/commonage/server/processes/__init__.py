"""Child processes: JupyterHub, its proxy, the registry."""
