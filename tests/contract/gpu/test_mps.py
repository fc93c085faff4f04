"""MPS with a program in the place of NVIDIA's daemon: started with the first share of a GPU, looked after, ended."""

import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons.devices import MpsDaemonEnded, MpsNotExclusive, SharedByMps
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.mps_daemon import PROGRAM, MpsDaemon
from commonage.ports.devices import ShareAssignment, ShareNotEnforced

FAKE = Path(__file__).parents[2] / "fakes" / "mps" / PROGRAM
DEVICE = Device("GPU-1", 0, "A100", 40960, compute_capability="8.0")


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def assignment(
    attempt_id: str, uuid: str = "GPU-1", memory_mib: int = 10240, compute_milli: int = 250
) -> ShareAssignment:
    share = Share(uuid, 0, "A100", memory_mib, compute_milli, False, 40960, isolation=Isolation.MPS)
    return ShareAssignment(attempt_id, (share,))


class World:
    """The folder, whose path is short as the sockets of MPS need it, the program, and whom we told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "bin" / PROGRAM
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []

    def mps(self) -> Mps:
        """As a process has it; another call is a later process."""
        return Mps(self.folder / "mps", lambda attempt, why: self.told.append((attempt, why)), self.clock)

    def daemon(self, uuid: str = "GPU-1") -> MpsDaemon:
        return MpsDaemon(uuid, self.folder / "mps" / uuid.removeprefix("GPU-"))

    def fails(self, why: str) -> None:
        self.program.with_name(f"{PROGRAM}.fails").write_text(why)

    def works(self) -> None:
        self.program.with_name(f"{PROGRAM}.fails").unlink()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    world = World(folder)
    world.program.parent.mkdir()
    shutil.copy(FAKE, world.program)
    monkeypatch.setenv("PATH", f"{world.program.parent}:{os.environ['PATH']}")
    yield world
    for place in (folder / "mps").glob("*"):
        MpsDaemon.in_folder(place).stop()
    shutil.rmtree(folder)


def kill(daemon: MpsDaemon) -> None:
    pid = daemon.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while daemon.pid() is not None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_the_first_share_starts_the_daemon_and_the_last_ends_it(world: World) -> None:
    mps = world.mps()
    variables = mps.apply(assignment("a-1"))
    pid = world.daemon().pid()
    assert pid is not None
    mps.apply(assignment("a-2"))
    mps.apply(assignment("a-2"))
    assert world.daemon().pid() == pid
    assert variables == {
        "CUDA_MPS_PIPE_DIRECTORY": f"{world.folder}/mps/1/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{world.folder}/mps/1/log",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    mps.release(assignment("a-1"))
    assert world.daemon().pid() == pid
    mps.release(assignment("a-2"))
    mps.release(assignment("a-2"))
    assert world.daemon().pid() is None


def test_each_device_has_its_own_and_sees_nothing_else(world: World) -> None:
    mps = world.mps()
    mps.apply(assignment("a-1"))
    mps.apply(assignment("a-2", uuid="GPU-2"))
    assert world.daemon().pid() != world.daemon("GPU-2").pid()
    assert (world.daemon("GPU-2").log / "control.log").read_text() == "serves GPU-2\n"
    assert stat.S_IMODE(world.daemon().pipe.stat().st_mode) == 0o700


def test_the_smallest_share_computes_a_little(world: World) -> None:
    assert world.mps().apply(assignment("a-1", compute_milli=3))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_a_killed_daemon_is_started_again_and_its_clients_are_told_once(world: World) -> None:
    mps = world.mps()
    mps.apply(assignment("a-1"))
    mps.apply(assignment("a-2"))
    assert not any(isinstance(notice, MpsDaemonEnded) for notice in mps.watch()["GPU-1"])
    before = world.daemon().pid()
    kill(world.daemon())
    notices = mps.watch()["GPU-1"]
    assert world.daemon().pid() not in (None, before)
    assert any(isinstance(notice, MpsDaemonEnded) for notice in notices)
    assert [attempt for attempt, _ in world.told] == ["a-1", "a-2"]
    mps.watch()
    assert len(world.told) == 2
    world.clock.at += 7200
    assert not any(isinstance(notice, MpsDaemonEnded) for notice in mps.watch()["GPU-1"])


def test_one_that_cannot_be_started_again_is_tried_later_and_said_meanwhile(world: World) -> None:
    mps = world.mps()
    mps.apply(assignment("a-1"))
    kill(world.daemon())
    world.fails("no room for MPS")
    assert any(isinstance(notice, MpsDaemonEnded) for notice in mps.watch()["GPU-1"])
    assert "no room for MPS" in str(mps.why_unavailable(DEVICE))
    assert len(world.told) == 1
    world.works()
    world.clock.at += 61
    mps.watch()
    assert world.daemon().pid() is not None
    assert mps.why_unavailable(DEVICE) is None


def test_a_daemon_that_does_not_start_is_the_reason(world: World) -> None:
    world.fails("the MPS server does not like this GPU")
    with pytest.raises(ShareNotEnforced, match="does not like this GPU") as raised:
        world.mps().apply(assignment("a-1"))
    assert raised.value.is_retryable


def test_a_daemon_that_keeps_what_it_was_started_with_open_is_not_waited_for(world: World) -> None:
    said = world.program.read_text()
    world.program.write_text(said.replace('>"$CUDA_MPS_LOG_DIRECTORY/control.log" 2>&1', ""))
    world.mps().apply(assignment("a-1"))
    assert world.daemon().pid() is not None


def test_a_daemon_that_came_but_said_that_it_failed_is_not_left(world: World) -> None:
    said = world.program.read_text()
    world.program.write_text(said.replace("</dev/null &", '</dev/null &\n  until [ -s "$number" ]; do :; done; exit 1'))
    with pytest.raises(ShareNotEnforced):
        world.mps().apply(assignment("a-1"))
    assert world.daemon().pid() is None


def test_a_later_process_takes_up_the_daemons_that_are_needed_and_ends_the_others(world: World) -> None:
    crashed = world.mps()
    crashed.apply(assignment("a-1"))
    crashed.apply(assignment("a-2", uuid="GPU-2"))
    pid = world.daemon().pid()
    later = world.mps()
    later.settle([assignment("a-1")])
    assert world.daemon().pid() == pid
    assert world.daemon("GPU-2").pid() is None
    later.release(assignment("a-1"))
    assert world.daemon().pid() is None


def test_one_that_died_while_nobody_looked_is_noticed(world: World) -> None:
    world.mps().apply(assignment("a-1"))
    kill(world.daemon())
    later = world.mps()
    later.settle([assignment("a-1")])
    later.watch()
    assert [attempt for attempt, _ in world.told] == ["a-1"]
    assert world.daemon().pid() is not None


def test_a_number_that_is_another_process_now_is_not_taken_for_the_daemon(world: World) -> None:
    daemon = world.daemon()
    daemon.pipe.mkdir(parents=True)
    (daemon.pipe / f"{PROGRAM}.pid").write_text(str(os.getpid()))
    assert daemon.pid() is None
    daemon.stop()
    world.mps().apply(assignment("a-1"))
    assert daemon.pid() is not None


def test_what_an_admin_is_told_of_faults(world: World) -> None:
    mps = world.mps()
    mps.apply(assignment("a-1"))
    notices = mps.watch()["GPU-1"]
    assert SharedByMps() in notices
    assert any(
        isinstance(notice, MpsNotExclusive) for notice in notices
    )  # there is no driver to ask for exclusive mode


def test_parts_of_two_devices_cannot_be_held(world: World) -> None:
    both = ShareAssignment("a-1", assignment("a-1").shares + assignment("a-1", uuid="GPU-2").shares)
    with pytest.raises(ShareNotEnforced, match="daemon of its own"):
        world.mps().apply(both)
