"""The ports of the server: listening sockets, the process that holds a busy port, and the loopback ports that are kept
across restarts.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import random
import socket
from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import psutil

from commonage.server import ServerError
from commonage.server.data_dir import write_private

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_CHILDREN_END_WITHIN_S = 30.0
_OUR_PORTS = range(15_000, 20_000)  # the kernel does not use them for outgoing connections
_MOST_RESERVED = 64
_reserved: OrderedDict[int, socket.socket] = OrderedDict()


class PortError(ServerError):
    """An address cannot be listened on; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of an installation. They stay the same, because sessions that outlive the server know them."""

    control: int
    hub: int
    proxy_api: int


def check(bind: str, port: int, flag: str) -> None:
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


def is_free(bind: str, port: int = 0) -> bool:
    """Whether `bind`:`port` can be listened on. With port 0: whether this machine has the address."""
    try:
        check(bind, port, "")
    except PortError:
        return False
    return True


async def wait_until_free(data_dir: Path, *listened: tuple[str, int]) -> None:
    """Wait a moment for these addresses and ports, and the kept loopback ports.

    Children of a killed server may still hold them.
    """
    kept = _kept_ports(data_dir / "ports.json")
    places = [*listened, *((LOOPBACK, one) for one in astuple(kept))]
    with suppress(TimeoutError):
        async with asyncio.timeout(_CHILDREN_END_WITHIN_S):
            for place in places:
                while not is_free(*place):  # noqa: ASYNC110 - asks the kernel
                    await asyncio.sleep(0.05)


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def local_host(bind: str) -> str:
    """The host of a URL by which this machine reaches a listener on `bind`."""
    return {"0.0.0.0": LOOPBACK, "::": "[::1]", "": LOOPBACK}.get(bind, in_url(bind))


def keep_ports(data_dir: Path, wanted: Ports, port: int = 0) -> Ports:
    """The loopback ports: the requested ones; for 0, the one of the last start, or a free one that is kept.

    They differ from each other and from the server's `port`.
    """
    file = data_dir / "ports.json"
    kept = _kept_ports(file)
    taken = {port, *astuple(wanted)}
    numbers = []
    for own, last in zip(astuple(wanted), astuple(kept), strict=True):
        numbers.append(own or _still_free(last, taken))
        taken.add(numbers[-1])
    ports = Ports(*numbers)
    if ports != kept:
        write_private(file, json.dumps(asdict(ports)))
    return ports


def free_port(bind: str = LOOPBACK, besides: Container[int] = ()) -> int:
    """Reserve a random port that is free and that no other Commonage process has reserved. Raises PortError."""
    for port in random.SystemRandom().sample(_OUR_PORTS, len(_OUR_PORTS)):
        if port not in besides and port not in _reserved and _reserve(port):
            if is_free(bind, port):
                return port
            if (mark := _reserved.pop(port, None)) is not None:
                mark.close()
    raise PortError(f"No free port from {_OUR_PORTS[0]} to {_OUR_PORTS[-1]} on {bind}.")


def _reserve(port: int) -> bool:
    """Reserve a port until this process ends, or chooses many others; False if another process has reserved it.

    Seconds may pass between the choice and the moment when a child listens. An abstract Unix socket is the reservation:
    it belongs to one network namespace, like the port, and the kernel removes it with the process.
    """
    if port in _reserved:
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0commonage-port-{port}")
    except OSError as error:
        mark.close()
        return error.errno != errno.EADDRINUSE  # a sandbox may have no such sockets: then nothing is reserved
    _reserved[port] = mark
    if len(_reserved) > _MOST_RESERVED:
        _reserved.popitem(last=False)[1].close()
    return True


def _still_free(kept: int, taken: Container[int]) -> int:
    if kept and kept not in taken and is_free(LOOPBACK, kept) and _reserve(kept):
        return kept
    if kept:
        log.warning("port %d of the last start is in use; sessions from before may not reach the hub", kept)
    return free_port(besides=taken)


def _kept_ports(file: Path) -> Ports:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return Ports(int(kept["control"]), int(kept["hub"]), int(kept["proxy_api"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # torn by a crash: the same as no file
        return Ports(0, 0, 0)


def _sentence(error: OSError, bind: str, port: int, flag: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} of {bind} is in use{_by_process(port)}. Stop that process, or choose another with {flag}."
            )
        case errno.EADDRNOTAVAIL:
            option = "--https-bind" if flag in ("--https-port", "--http-port") else "--bind"
            return f"{bind} is not an address of this machine. Choose one with {option}, or 0.0.0.0 for all."
        case errno.EACCES:
            return (
                f"This user (uid {os.geteuid()}) may not use port {port}. Choose one above 1023 with {flag}, start as "
                f"root, or allow all users such ports: sysctl -w net.ipv4.ip_unprivileged_port_start={port}"
            )
        case _:
            return f"Cannot listen on {bind}, port {port}: {error.strerror or error}."


def _by_process(port: int) -> str:
    """` by nginx (process 4711)`, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
