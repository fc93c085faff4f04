"""The server: settings, data folder, wiring and child processes. The only package that may import all others."""


class ServerError(Exception):
    """The server cannot start, or one of its commands cannot run; the message says why and what to do."""
