"""`commonage up` as a newcomer starts it: signed in, a job runs, Ctrl-C leaves nothing, the next start finds all."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.acceptance.served import USERS_PASSWORD, Served, processes_of, served
from tests.fakes.waiting import wait_until
from tests.integration.sign_in import sign_in

from commonage.server.processes.ports import free_port

UP = [sys.executable, "-m", "commonage", "up"]
FLAGS = ("--gpus", "simulated:1x24GiB")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, *FLAGS) as installation:
        yield installation


def refused(*flags: str, **environment: str) -> str:
    """The error on stderr of a server that cannot start; its exit code is 2, and there is no traceback."""
    done = subprocess.run(
        [*UP, *flags], capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr


def test_from_the_first_start_to_the_second(here: Served) -> None:
    wait_until(lambda: "Workloads run as plain processes" in here.output)
    assert f"http://localhost:{here.port}/" in here.output
    assert "simulated" in here.output.lower()
    assert "can read and stop each other's work" in here.output

    assert sign_in(here.url, "alice", USERS_PASSWORD) == "alice"

    data = ("--data-dir", str(here.data), "--json")
    findings = json.loads(here.cli("doctor", *data).stdout)
    assert [finding for finding in findings if finding["verdict"] == "bad"] == []
    assert {"control plane", "hub", "proxy", "database"} <= {finding["check"] for finding in findings}
    assert json.loads(here.cli("db", "check", *data).stdout)["differences"] == []
    assert json.loads(here.cli("config", *data).stdout)[0]["value"] == str(here.data)
    assert json.loads(here.cli("ps", "--data-dir", str(here.data), "--json").stdout) == []

    token = here.token("bob", "--expires", "1d")
    (here.folder / "work").mkdir()
    (here.folder / "work" / "hello.py").write_text("print('hello', open(__file__).read()[:5])")
    done = here.cli("run", "--", "python", "hello.py", token=token, cwd=here.folder / "work")
    assert (done.returncode, done.stdout) == (0, "hello print\n")
    assert here.cli("run", "--no-files", "--", "sh", "-c", "exit 7", token=token).returncode == 7
    long = json.loads(here.cli("run", "-d", "--json", "--no-files", "--", "sleep", "1000", token=token).stdout)["id"]

    with here.client("bob") as client:
        wait_until(lambda: client.workload(long).state == "running")
        ports = (here.data / "ports.json").read_text()
        assert here.stop(signal.SIGINT) == 0
        assert here.processes() == []

        here.start()
        states = {one.id: one.state for one in client.workloads()}
        assert sorted(state for one, state in states.items() if one != long) == ["failed", "succeeded"]
        wait_until(lambda: client.workload(long).state == "running")
        assert client.workload(long).attempts == 2
        assert (here.data / "ports.json").read_text() == ports
        client.stop(long)
        assert client.wait(long, 30).state == "stopped"


def test_workloads_outlive_an_upgrade_and_a_crash(here: Served) -> None:
    with here.client("bob") as client:
        token = here.token("bob")
        made = here.cli("run", "-d", "--no-files", "--", "sh", "-c", "echo one; sleep 1000", token=token).stdout.strip()
        wait_until(lambda: client.workload(made).state == "running")

        assert here.stop(signal.SIGTERM) == 0
        assert [pid for pid in here.processes() if b"traefik" in command(pid) or b"hub" in command(pid)] == []
        assert here.processes() != []
        here.start()
        assert (client.workload(made).state, client.workload(made).attempts) == ("running", 1)

        here.kill()
        here.start()  # while hub and proxy of the killed one may still end
        assert (client.workload(made).state, client.workload(made).attempts) == ("running", 1)
        client.stop(made)
        assert client.wait(made, 30).state == "stopped"


def test_a_second_ctrl_c_hurries(here: Served) -> None:
    with here.client("bob") as client:
        token = here.token("bob")
        stubborn = (
            "run",
            "-d",
            "--no-files",
            "--grace",
            "5m",
            "--",
            "sh",
            "-c",
            "trap '' TERM INT; sleep 1000 & wait; sleep 1000",
        )
        made = here.cli(*stubborn, token=token).stdout.strip()
        wait_until(lambda: client.workload(made).state == "running")
    assert here.process is not None
    here.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Waiting for" in here.output)
    assert here.stop(signal.SIGINT) == 0
    assert here.processes() == []


def test_a_second_server_is_refused(here: Served) -> None:
    same_folder = refused("--data-dir", str(here.data), "--port", str(free_port()))
    assert f"Another server uses {here.data}" in same_folder
    assert here.url in same_folder
    same_port = refused("--data-dir", str(here.folder / "other"), "--port", str(here.port))
    assert f"Port {here.port} of 127.0.0.1 is in use by traefik" in same_port
    assert "--port" in same_port


def test_what_a_start_refuses(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    assert "192.0.2.1 is not an address of this machine" in refused(*data, "--bind", "192.0.2.1")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused("--data-dir", str(tmp_path / "file"))
    (tmp_path / "data" / "layout").write_text("99")
    assert "A newer Commonage wrote" in refused(*data)


def test_a_database_of_a_newer_program(tmp_path: Path) -> None:
    import sqlite3

    data = ("--data-dir", str(tmp_path / "data"))
    subprocess.run([sys.executable, "-m", "commonage", "db", "upgrade", *data], check=True)
    subprocess.run([sys.executable, "-m", "commonage", "db", "check", *data], check=True)
    with sqlite3.connect(tmp_path / "data" / "commonage.db") as database:
        database.execute("UPDATE schema_version SET version_num = '9999'")
    assert "written by a newer Commonage" in refused(*data, "--port", "0")


@pytest.mark.needs("root")
@pytest.mark.parametrize(("options", "said"), [("size=64k", "is full"), ("size=64m,ro", "read-only file system")])
def test_a_disk_that_cannot_be_written(tmp_path: Path, options: str, said: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.fail(f"root may not mount here: {mounted.stderr.decode()}")
    try:
        assert said in refused("--data-dir", str(disk), "--port", "0")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    process = subprocess.Popen([*UP, "--data-dir", str(tmp_path / "data"), "--port", "0"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)
    assert processes_of(tmp_path / "data") == []


def test_in_a_terminal_it_shows_how_to_sign_in_once(tmp_path: Path) -> None:
    first, second = (in_a_terminal([*UP, "--data-dir", str(tmp_path / "data"), "--port", "0"]) for _ in range(2))
    password = (tmp_path / "data" / "secrets" / "admin_password").read_text().strip()
    assert password in first
    assert password not in second
    address = next(line.strip() for line in first.splitlines() if line.strip().startswith("http://"))
    assert 1024 < int(address.strip("/").rpartition(":")[2]) < 65536
    assert f"{tmp_path}/data/secrets/admin_password" in second
    assert "Ctrl-C stops everything." in first
    assert "Stopped." in first
    assert processes_of(tmp_path / "data") == []


def in_a_terminal(command: list[str]) -> str:
    """Run it in a terminal, press Ctrl-C once it is ready; what it showed."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True) as process:
        os.close(follower)
        shown = b""
        pressed = False
        with suppress(OSError):  # EIO: the other side is closed
            while part := os.read(leader, 4096):
                shown += part
                if not pressed and b"Ctrl-C stops" in shown:
                    pressed = True
                    process.send_signal(signal.SIGINT)
        os.close(leader)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ESRCH)
        return b""


def test_the_portal_is_there_after_the_names_of_sessions_change(here: Served) -> None:
    """The hub finds in its proxy the route to the portal at the address of the start before."""
    for names in ("none", "*.localhost", "none"):
        assert here.stop() == 0
        here.variables = {"COMMONAGE_PUBLIC_URL": f"http://localhost:{here.port}", "COMMONAGE_SESSION_HOST": names}
        here.start()
        assert sign_in(here.url, "alice", USERS_PASSWORD) == "alice"
