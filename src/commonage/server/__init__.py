"""The server: settings, data folder, wiring and child processes. The only package that may import all others."""
