"""Ports that cannot be listened on, and loopback ports that stay the same.

Fixed ports are outside the ranges of the server and of the process engine, which other tests use meanwhile.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonage.server.processes import ports as ports_module
from commonage.server.processes.ports import (
    PortError,
    Ports,
    check,
    free_port,
    is_free,
    keep_ports,
    listen,
    wait_until_free,
)


def test_a_taken_port_is_named_with_who_has_it() -> None:
    with listen("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError) as caught:
            check("127.0.0.1", port, "--port")
    assert f"Port {port} of 127.0.0.1 is in use by " in str(caught.value)
    assert f"(process {os.getpid()})" in str(caught.value)
    assert "choose another with --port" in str(caught.value)
    check("127.0.0.1", port, "--port")


def test_an_address_of_another_node() -> None:
    with pytest.raises(PortError, match=r"192\.0\.2\.1 is not an address of this machine"):
        check("192.0.2.1", 0, "--port")


def test_a_port_for_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: tuple[str, int]) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PortError, match="may not use port 80"):
        check("127.0.0.1", 80, "--port")


def test_loopback_ports_stay_the_same(tmp_path: Path) -> None:
    first = keep_ports(tmp_path, Ports(0, 0, 0))
    assert 0 not in (first.control, first.hub, first.proxy_api)
    assert keep_ports(tmp_path, Ports(0, 0, 0)) == first
    assert keep_ports(tmp_path, Ports(0, 9999, 0)) == Ports(first.control, 9999, first.proxy_api)
    (tmp_path / "ports.json").write_text("{torn")
    assert keep_ports(tmp_path, Ports(1, 2, 3)) == Ports(1, 2, 3)
    assert json.loads((tmp_path / "ports.json").read_text()) == {"control": 1, "hub": 2, "proxy_api": 3}


def test_loopback_ports_differ_from_each_other_and_from_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports_module, "_OUR_PORTS", range(14_990, 14_994))
    monkeypatch.setattr(ports_module, "is_free", lambda *_: True)
    found = keep_ports(tmp_path, Ports(0, 0, 0), 14_991)
    assert {found.control, found.hub, found.proxy_api} == {14_990, 14_992, 14_993}


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderedDict[int, socket.socket]]:
    """Port reservations that end with the test."""
    own: OrderedDict[int, socket.socket] = OrderedDict()
    monkeypatch.setattr(ports_module, "_reserved", own)
    yield own
    for mark in own.values():
        mark.close()


_CHOOSES = """
from commonage.server.processes import ports
ports._OUR_PORTS = range(14_980, 14_983)
print(ports.free_port(), flush=True)
input()
"""


def test_a_port_that_another_process_has_chosen_is_not_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "_OUR_PORTS", range(14_980, 14_983))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _CHOOSES], **pipes) as other:
        theirs = int(other.stdout.readline())
        assert is_free("127.0.0.1", theirs), "chosen, but nothing listens yet"
        ours = {free_port(), free_port()}
        assert ours | {theirs} == {14_980, 14_981, 14_982}
        with pytest.raises(PortError, match="No free port from 14980 to 14982"):
            free_port()
        other.communicate("end\n")
    assert free_port() == theirs


def test_without_abstract_sockets_nothing_is_reserved(
    reserved: OrderedDict[int, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = socket.socket.bind

    def refuse(self: socket.socket, address: object) -> None:
        if self.family == socket.AF_UNIX:
            raise PermissionError(13, "Permission denied")
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert free_port() in ports_module._OUR_PORTS
    assert not reserved


def test_only_the_latest_choices_stay_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "_OUR_PORTS", range(14_970, 14_980))
    monkeypatch.setattr(ports_module, "_MOST_RESERVED", 3)
    chosen = [free_port() for _ in range(30)]
    assert all(chosen[i] not in chosen[i + 1 : i + 4] for i in range(len(chosen)))


@pytest.mark.anyio
@pytest.mark.parametrize("held", ["port", "control", "hub", "proxy_api"])
async def test_ports_that_children_of_a_killed_server_hold_become_free(tmp_path: Path, held: str) -> None:
    kept = keep_ports(tmp_path, Ports(0, 0, 0))
    here = listen("127.0.0.1", 0, "")
    port = here.getsockname()[1]
    child = here if held == "port" else listen("127.0.0.1", getattr(kept, held), "")
    if child is not here:
        here.close()
    waiting = asyncio.create_task(wait_until_free(tmp_path, ("127.0.0.1", port)))
    await asyncio.sleep(0)
    assert not waiting.done()
    child.close()
    await waiting
    assert is_free("127.0.0.1", port)
    assert keep_ports(tmp_path, Ports(0, 0, 0)) == kept
