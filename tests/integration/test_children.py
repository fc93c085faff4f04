"""The supervisor with real processes: restarted when killed, none left when stopped, none left when we are killed."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.fakes.waiting import until

from commonage.server.processes.children import Child, ChildFailed, Supervisor

pytestmark = pytest.mark.anyio

# Says that it is ready, has a child of its own, and takes no notice of SIGTERM if so told.
PROGRAM = """
import signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen(["sleep", "600"])
print("inner", inner.pid, flush=True)
print("ready to serve", flush=True)
time.sleep(600)
"""


def child(folder: Path, *arguments: str, program: str = PROGRAM, grace_s: float = 5) -> Child:
    return Child(
        name="worker",
        argv=[sys.executable, "-c", program, *arguments],
        env=dict(os.environ),
        cwd=folder,
        log_path=folder / "logs" / "worker.log",
        ready_line="ready to serve",
        ready_s=20,
        grace_s=grace_s,
    )


def inner_pids(folder: Path) -> list[int]:
    lines = (folder / "logs" / "worker.log").read_text().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("inner")]


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that its parent has not reaped counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_restarted_when_killed_and_none_left_when_stopped(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path)])
    await supervisor.start()
    first = supervisor.states()[0].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.states()[0].ready and supervisor.states()[0].pid != first)
    assert supervisor.states()[0].restarts == 1
    second = supervisor.states()[0].pid
    assert second is not None
    await supervisor.stop()
    assert supervisor.states()[0].pid is None
    assert len(inner_pids(tmp_path)) == 2
    await until(lambda: all(gone(pid) for pid in [first, second, *inner_pids(tmp_path)]))


async def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "stubborn", grace_s=0.3)])
    await supervisor.start()
    pid = supervisor.states()[0].pid
    assert pid is not None
    await supervisor.stop()
    assert gone(pid)
    await until(lambda: all(gone(pid) for pid in inner_pids(tmp_path)))


async def test_stop_while_it_waits_to_start_again(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path)])
    await supervisor.start()
    pid = supervisor.states()[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: supervisor.states()[0].restarts == 1)
    await supervisor.stop()
    await until(lambda: all(gone(pid) for pid in inner_pids(tmp_path)))


@pytest.mark.parametrize(
    ("program", "ready_s", "sentence"),
    [
        ("print('no such port'); raise SystemExit(3)", 20, r"ended with code 3 before it was ready.*\n.*no such port"),
        ("import time; time.sleep(600)", 0.5, r"not ready within 0.5 s"),
    ],
)
async def test_never_ready(tmp_path: Path, program: str, ready_s: float, sentence: str) -> None:
    broken = replace(child(tmp_path, program=program), ready_s=ready_s)
    with pytest.raises(ChildFailed, match=sentence):
        await Supervisor([broken]).start()


async def test_what_cannot_be_started(tmp_path: Path) -> None:
    missing = replace(child(tmp_path), argv=["/no/such/program"])
    with pytest.raises(ChildFailed, match="worker cannot be started"):
        await Supervisor([missing]).start()


async def test_a_failure_stops_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    with pytest.raises(ChildFailed):
        await Supervisor([child(tmp_path / "good"), child(tmp_path / "bad", program="raise SystemExit(1)")]).start()
    await until(lambda: all(gone(pid) for pid in inner_pids(tmp_path / "good")))


PARENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_children import child
from commonage.server.processes.children import Supervisor

async def main():
    supervisor = Supervisor([child(Path(sys.argv[1]))])
    await supervisor.start()
    print(supervisor.states()[0].pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_killed_with_its_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), str(Path(__file__).parent), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert not gone(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: gone(pid))
    for inner in inner_pids(tmp_path):  # the kernel's promise covers the child, not the child's own children
        os.kill(inner, signal.SIGKILL)
