"""A folder for the JUPYTER_CONFIG_PATH of sessions: its modules run in their server. Not imported by this package."""
