"""The JupyterHub side: its configuration, scopes and spawner. Runs in JupyterHub's process."""
