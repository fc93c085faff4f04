"""The control plane's use cases and loops. Everything is async and reaches the outside only through ports."""
