"""Checks the ports that the server is to listen on, and finds the process that holds a busy one. Called by the
server's main.
"""

from __future__ import annotations

import errno
import os
import socket

import psutil

LOOPBACK = "127.0.0.1"


class PortError(Exception):
    """An address cannot be listened on; the message says which, why, and what to do."""


def check(bind: str, port: int, flag: str) -> None:
    """Raise PortError if `bind`:`port` cannot be listened on now. `flag` is the option that changes it."""
    listen(bind, port, flag).close()


def listen(bind: str, port: int, flag: str) -> socket.socket:
    """A bound socket (0 takes a free port). Raises PortError."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((bind, port))
        # Binding alone succeeds if another listener was bound with SO_REUSEADDR as well; listening does not.
        made.listen(2048)
    except OSError as error:
        made.close()
        raise PortError(_sentence(error, bind, port, flag)) from error
    made.setblocking(False)
    return made


def is_here(address: str) -> bool:
    """Whether this machine has the address."""
    try:
        listen(address, 0, "").close()
    except PortError:
        return False
    return True


def _sentence(error: OSError, bind: str, port: int, flag: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} of {bind} is in use{_by_process(port)}. Stop that process, or choose another with {flag}."
            )
        case errno.EADDRNOTAVAIL:
            return f"{bind} is not an address of this machine. Choose one with --bind, or 0.0.0.0 for all."
        case errno.EACCES:
            return f"This user (uid {os.geteuid()}) may not use port {port}. Choose one above 1023 with {flag}."
        case _:
            return f"Cannot listen on {bind}, port {port}: {error.strerror or error}."


def _by_process(port: int) -> str:
    """` by nginx (process 4711)`, as far as this user may see it."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f" by {psutil.Process(one.pid).name()} (process {one.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
