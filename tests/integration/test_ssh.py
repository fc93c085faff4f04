"""`commonage ssh` and `port-forward` with real ssh, scp and rsync, to real processes in a real workload."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fakes.waiting import wait_until
from tests.integration.api_world import served

from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.sdk import Client, SubmitIn, relay

TIMEOUT_S = 120.0
# Answers each line with itself, and ends with the client.
ECHO = """
import os, socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"got " + line)
server = socketserver.ThreadingTCPServer(("localhost", 0), Echo)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ssh")
    with served(folder, engine=lambda: ProcessEngine("local", folder, settings=ProcessSettings(node_name="m"))) as url:
        yield url


@pytest.fixture(scope="module")
def port(url: str) -> Iterator[int]:
    """A running job `train` with a server at this port."""
    with Client(url, "ann") as client:
        ask = SubmitIn(command=[sys.executable, "-c", ECHO], name="train", variables={"PLAIN": "a b"}, memory_mib=256)
        made = client.submit(ask).workload.id

        def said() -> str:
            return "".join(line.text for line in client.logs(made))

        wait_until(lambda: client.workload(made).state == "running" and "port" in said(), "it serves")
        yield int(re.findall(r"port (\d+)", said())[0])
        client.stop(made)


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    """The variables of a user's machine, whose `commonage` is this one."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "commonage"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m commonage "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "COMMONAGE_URL": url,
        "COMMONAGE_TOKEN": "ann",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def run(command: Sequence[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("openssh")
def test_ssh_scp_and_rsync_reach_a_job(port: int, environment: dict[str, str], tmp_path: Path) -> None:
    said = run(["commonage", "ssh", "train", 'echo "$PLAIN"; pwd; echo "$HOME"; umask'], environment).splitlines()
    home = Path(said[2])
    assert (said[0], said[3]) == ("a b", run(["sh", "-c", "umask"], environment).strip())
    assert home.name == "ann" and said[1] == said[2]
    config = tmp_path / "ssh_config"
    config.write_text(run(["commonage", "ssh", "--config", "train"], environment))
    assert "ann" not in config.read_text().split()  # the token stays out
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "a").write_bytes(bytes(range(256)) * 4096)
    run(["scp", "-F", config, "-q", tmp_path / "tree" / "deep" / "a", "train.commonage:copied"], environment)
    assert (home / "copied").read_bytes() == (tmp_path / "tree" / "deep" / "a").read_bytes()
    run(["rsync", "-a", "-e", f"ssh -F {config}", f"{tmp_path}/tree/", "train.commonage:tree/"], environment)
    assert (home / "tree" / "deep" / "a").read_bytes() == (home / "copied").read_bytes()
    failed = subprocess.run(
        ["ssh", "-F", config, "train.commonage", "exit 7"], env=environment, check=False, timeout=TIMEOUT_S
    )
    assert failed.returncode == 7


@pytest.mark.needs("openssh")
def test_key_of_another_user_is_refused(port: int, environment: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(run(["commonage", "ssh", "--config", "train"], environment))
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], environment)
    wrong = re.sub(r"IdentityFile .*", f"IdentityFile {tmp_path}/other", config.read_text())
    config.write_text(wrong)
    refused = subprocess.run(
        ["ssh", "-F", config, "-o", "BatchMode=yes", "train.commonage", "true"],
        env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert refused.returncode == 255 and "Permission denied" in refused.stderr


def test_image_without_sshd_is_named() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", relay.USER.replace("sshd ", "no-such-sshd "), "ssh"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == relay.MISSING
    assert "no-such-sshd" in done.stderr and "openssh-server" in done.stderr


def test_workload_of_another_user_is_refused(port: int, environment: dict[str, str]) -> None:
    for command in (["ssh", "train"], ["port-forward", "train", "80"]):
        done = subprocess.run(
            ["commonage", *command], env={**environment, "COMMONAGE_TOKEN": "bob"}, capture_output=True, text=True,
            check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 2 and "no workload of yours" in done.stderr


def test_ports_are_forwarded(port: int, environment: dict[str, str]) -> None:
    command = ["commonage", "port-forward", "train", f"0:{port}"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        first = re.findall(r"127\.0\.0\.1:(\d+) ", process.stdout.readline())
        # More than the commands that a user may have at a time.
        connections = [socket.create_connection(("127.0.0.1", int(first[0])), TIMEOUT_S) for _ in range(12)]
        for number, one in enumerate(connections):
            one.settimeout(TIMEOUT_S)
            one.sendall(f"{number}\n".encode())
            one.shutdown(socket.SHUT_WR)
        for number, one in enumerate(connections):
            assert one.makefile("rb").read() == f"got {number}\n".encode()
            one.close()
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def test_port_without_server_is_reported(port: int, environment: dict[str, str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        silent = unused.getsockname()[1]
        command = ["commonage", "port-forward", "train", f"0:{silent}"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and process.stderr is not None
            first = re.findall(r"127\.0\.0\.1:(\d+) ", process.stdout.readline())
            with socket.create_connection(("127.0.0.1", int(first[0])), TIMEOUT_S) as one:
                one.settimeout(TIMEOUT_S)
                assert one.recv(1) == b""
            assert f"nothing answers at port {silent}" in process.stderr.readline()
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
