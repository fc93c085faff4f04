"""`commonage exec` and what is behind it, from a real terminal to real processes in a real workload."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import re
import secrets
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

import aiohttp
import pytest
from tests.fakes.waiting import wait_until
from tests.integration.api_world import served

from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.sdk import ApiError, AsyncClient, Client, SubmitIn
from commonage.wire.execs import WINDOW
from commonage.wire.hub import API_PATH

_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("exec")
    with served(folder, engine=lambda: ProcessEngine("local", folder, settings=ProcessSettings(node_name="m"))) as url:
        yield url


@pytest.fixture
def ann(url: str) -> Iterator[Client]:
    with Client(url, "ann") as client:
        yield client


@pytest.fixture
def job(ann: Client) -> Iterator[str]:
    ask = SubmitIn(command=["sh", "-c", "exec sleep 300"], name="train", variables={"PLAIN": "a b"}, memory_mib=256)
    made = ann.submit(ask).workload.id
    wait_until(lambda: ann.workload(made).state == "running", "it runs")
    yield made
    if ann.workload(made).state == "running":
        ann.stop(made)
        wait_until(lambda: ann.workload(made).state == "stopped", "it has ended")


def begun(url: str, *arguments: str, token: str = "ann", **how: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "COMMONAGE_URL": url, "COMMONAGE_TOKEN": token, "TERM": "xterm"}
    environment |= {"COLUMNS": "80", "LINES": "24"}  # as another terminal had it
    arguments = (sys.executable, "-m", "commonage", "exec", *arguments)
    return subprocess.Popen(arguments, env=environment, **how)  # type: ignore[call-overload,no-any-return]  # its own


def run(url: str, *arguments: str, token: str = "ann", given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Its exit code, output and errors, with this input."""
    pipe = subprocess.PIPE
    process = begun(url, *arguments, token=token, stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = process.communicate(given, timeout=60)
    return process.returncode, out, err


def new_mark() -> str:
    """Seconds for `sleep`, unique on this machine, by which a test finds its process."""
    return f"314.{secrets.randbelow(10**12):012}"


def running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if words[:2] == [b"sleep", mark.encode()]:
            found.append(int(entry.name))
    return found


def test_code_output_and_errors_are_the_commands_own(url: str, job: str) -> None:
    script = 'echo "out $PLAIN $COMMONAGE_WORKLOAD_ID"; echo err >&2; exit 7'
    assert run(url, job, "--", "sh", "-c", script) == (7, f"out a b {job}\n".encode(), b"err\n")
    code, out, err = run(url, "train", "no-such-command", "--flag")
    assert (code, out) == (127, b"")
    assert b"no-such-command" in err
    assert run(url, job, given=b"echo from a shell; exit 3\n")[:2] == (3, b"from a shell\n")


def test_much_goes_through_both_ways(url: str, job: str) -> None:
    data = os.urandom(1024 * 1024)
    code, out, _ = run(url, job, "--", "sha256sum", given=data)
    assert (code, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())
    assert run(url, job, "--", "cat", given=data)[1] == data


def test_what_is_not_there_does_not_run_or_is_somebody_elses(url: str, ann: Client, job: str) -> None:
    unknown = run(url, "0" * 13, "--", "true", token="bob")
    foreign = run(url, job, "--", "true", token="bob")
    assert unknown[0] == foreign[0] == 2
    assert unknown[2].replace(b"0" * 13, b"ID") == foreign[2].replace(job.encode(), b"ID")
    assert run(url, job, "--", "true", token="admin:root")[0] == 0
    code, _, err = run(url, job, "--", "true", token="read:ann")
    assert (code, b"lacks the scope" in err) == (2, True)
    ann.stop(job)
    wait_until(lambda: ann.workload(job).state == "stopped", "it has ended")
    code, _, err = run(url, job, "--", "true")
    assert (code, err.decode().strip()) == (2, f"commonage: {job} is not running but stopped; start it again")


def test_it_is_written_down_without_what_may_be_secret(url: str, ann: Client, job: str) -> None:
    run(url, job, "--", "/bin/echo", "hunter2", token="admin:root")
    told = [one for one in ann.event_page(job).items if one.kind == "audit"]
    assert [one.reason.params for one in told] == [{"by": "root", "program": "echo", "workload": "train"}]


class Screen:
    """A terminal with `commonage exec` at it."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(91, 33)
        self.before = termios.tcgetattr(self.slave)
        how: dict[str, Any] = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = begun(url, *arguments, start_new_session=True, preexec_fn=self._take, **how)
        self.phase = b""

    @staticmethod
    def _take() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, wanted: bytes) -> bytes:
        """Wait for output that matches this expression."""
        deadline = time.monotonic() + _WITHIN_S
        while (found := re.search(wanted, self.phase)) is None:
            assert time.monotonic() < deadline, f"{wanted!r} is not in {self.phase!r}"
            if select([self.master], [], [], 0.1)[0]:
                self.phase += os.read(self.master, 65536)
        self.phase = self.phase[found.end() :]
        return found[0]

    def asked(self, command: str, answer: bytes) -> bytes:
        self.type(f"{command}\n")
        return self.until(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def test_a_terminal_is_one_from_end_to_end(url: str, job: str) -> None:
    screen, mark = Screen(url, job, "--", "sh"), new_mark()
    try:
        screen.until(b"[#$] ")
        screen.type("stty size; echo $TERM; tty\n")
        screen.until(b"33 91\r\nxterm\r\n/dev/pts/")
        screen.resize(72, 21)
        wait_until(lambda: screen.asked("stty size", rb"\d+ \d+\r\n") == b"21 72\r\n", "it has heard of the size")
        screen.type(f"sleep {mark}\n")
        wait_until(lambda: running(mark), "it sleeps")
        screen.type("\x03")  # Ctrl-C is the command's, not ours
        wait_until(lambda: not running(mark), "it was interrupted")
        screen.type("exit 5\n")
        assert screen.process.wait(timeout=_WITHIN_S) == 5
        assert termios.tcgetattr(screen.slave) == screen.before
    finally:
        screen.close()


@pytest.mark.parametrize("how", ["--tty", "--no-tty"])
def test_a_client_that_is_killed_leaves_nothing(url: str, job: str, how: str) -> None:
    mark = new_mark()
    script = f"(trap '' HUP TERM; exec setsid sleep {mark}) & exec sleep {mark}"
    process = begun(url, how, job, "--", "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(running(mark)) == 2, "both run")
    process.kill()
    process.wait()
    wait_until(lambda: not running(mark), "nothing is left")


def test_nor_does_one_whose_input_nobody_takes(url: str, job: str) -> None:
    mark = new_mark()
    with open("/dev/zero", "rb") as zeros:
        process = begun(url, job, "--", "sleep", mark, stdin=zeros, stdout=subprocess.DEVNULL)
    wait_until(lambda: running(mark), "it runs")
    time.sleep(1)  # its pipe, the window and the sockets fill up
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=_WITHIN_S) == 130
    wait_until(lambda: not running(mark), "nothing is left")


def test_the_end_of_the_workload_ends_the_command(url: str, ann: Client, job: str) -> None:
    mark = new_mark()
    process = begun(url, job, "--", "sleep", mark, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_until(lambda: running(mark), "it runs")
    ann.stop(job)
    assert process.wait(timeout=_WITHIN_S) > 128


def test_programs_may_do_it_too(url: str, ann: Client, job: str) -> None:
    done = ann.execute(job, ["sh", "-c", "cat; echo no >&2; exit 4"], stdin=b"yes")
    assert (done.exit_code, done.stdout, done.stderr) == (4, b"yes", b"no\n")
    with pytest.raises(ApiError) as refused:
        Client(url, "bob").execute(job, ["true"])
    assert refused.value.code == "workload-not-found"


def _connect(url: str, job: str, **headers: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"{url}", headers={"Authorization": "Bearer ann", **headers})


def test_pages_of_others_may_not(url: str, job: str) -> None:
    async def status(**headers: str) -> int:
        async with _connect(url, job, **headers) as session:
            try:
                async with session.ws_connect(f"{API_PATH}/workloads/{job}/exec"):
                    return 101
            except aiohttp.WSServerHandshakeError as error:
                return error.status

    assert asyncio.run(status(Origin="https://evil.example")) == 403
    assert asyncio.run(status(Origin=url)) == 101
    assert asyncio.run(status(Authorization="")) == 401


def test_what_is_not_understood_is_said(url: str, job: str) -> None:
    async def answers(*messages: str | bytes) -> list[str]:
        async with _connect(url, job) as session, session.ws_connect(f"{API_PATH}/workloads/{job}/exec") as link:
            for one in messages:
                await (link.send_str(one) if isinstance(one, str) else link.send_bytes(one))
            return [message.data async for message in link]

    for first in ("ls", "{}}", '{"commands": []}', '{"terminal": {"columns": 0}}'):
        assert '"problem"' in asyncio.run(answers(first))[-1]
    ask = '{"command": ["sleep", "9"]}'
    assert '"problem"' in asyncio.run(answers(ask, '{"resize": 1}'))[-1]
    much = asyncio.run(answers(ask, *[b"0" * 65536] * (3 * WINDOW // 65536)))
    assert "too-large" in much[-1]


def test_plain_http_is_told_so(url: str, job: str) -> None:
    async def ask(token: str) -> tuple[int, str]:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
            answer = await session.get(f"{url}{API_PATH}/workloads/{job}/exec")
            return answer.status, (await answer.json())["code"]

    assert asyncio.run(ask("ann")) == (426, "upgrade-required")
    assert asyncio.run(ask("bob")) == (404, "workload-not-found")


def test_a_server_that_stops_ends_them(tmp_path: Path) -> None:
    mark, lasting = new_mark(), new_mark()
    engine = ProcessSettings(node_name="m")
    with (
        served(tmp_path, engine=lambda: ProcessEngine("local", tmp_path, settings=engine)) as url,
        Client(url, "ann") as ann,
    ):
        made = ann.submit(SubmitIn(command=["sleep", lasting], memory_mib=64)).workload.id
        wait_until(lambda: ann.workload(made).state == "running", "it runs")
        process = begun(url, made, "--", "sleep", mark, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: running(mark), "it runs")
    try:
        assert process.wait(timeout=_WITHIN_S) == 3
        assert not running(mark)
    finally:
        for pid in running(lasting):
            os.kill(pid, signal.SIGKILL)


async def _talk(url: str, job: str) -> list[bytes]:
    async with AsyncClient(url, "ann") as client, client.exec(job, ["cat"]) as running:
        said = []
        for word in (b"one", b"two"):
            await running.write(word)
            one = await running.read()
            assert one is not None
            said.append(one[1])
        await running.close_stdin()
        assert await running.read() is None
        assert running.exit_code == 0
        return said


def test_a_program_may_talk_to_it(url: str, job: str) -> None:
    assert asyncio.run(_talk(url, job)) == [b"one", b"two"]
