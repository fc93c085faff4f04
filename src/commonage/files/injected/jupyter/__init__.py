"""Files on the JUPYTER_CONFIG_PATH of sessions; the modules here run there. Not imported by this package."""
