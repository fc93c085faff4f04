"""Read by the Jupyter server of a session; standard library only. See the package above."""
