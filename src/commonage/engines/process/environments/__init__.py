"""Python environments of a process site, built with uv."""
