"""Ports that cannot be had: which, why, by whom, and what to do."""

import os
import socket

import pytest

from commonage.server.processes.listen import PortError, check, listen


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
